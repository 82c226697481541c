//! A server of packages and repositories on loopback, with TLS of an authority that the machine does not know.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::suite::{TrialError, skip};

/// The server's program.
const SERVER: &str = include_str!("../../data/package_server.py");

/// Makes an authority, a certificate of it for `packages.test`, and an empty repository.
const PREPARE: &str = include_str!("../../data/package_server.sh");

/// A server that ends with this.
#[derive(Debug)]
pub struct PackageServer {
    child: Child,
    folder: tempfile::TempDir,
    /// Where it speaks TLS.
    port: u16,
    /// Where it does not.
    plain_port: u16,
}

impl PackageServer {
    /// Starts one that has `count` packages of npm.
    ///
    /// # Errors
    ///
    /// Fails where a program is missing that it is made with.
    pub fn start(count: usize) -> Result<Self, TrialError> {
        for program in ["git", "python3", "openssl"] {
            let version = Command::new(program).arg("version").output();
            if version.is_err() {
                return Err(skip(format!("there is no {program} on this machine")));
            }
        }
        let folder = tempfile::tempdir()?;
        let base = folder.path();
        let prepared = Command::new("sh")
            .args(["-c", PREPARE])
            .current_dir(base)
            .env("HOME", base)
            .output()?;
        if !prepared.status.success() {
            return Err(String::from_utf8_lossy(&prepared.stderr).into_owned().into());
        }
        fs::write(base.join("server.py"), SERVER)?;
        let mut child = Command::new("python3")
            .args(["server.py", "served", "cert.pem", "key.pem", &count.to_string()])
            .current_dir(base)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let mut ports = line.split_whitespace().map(str::parse);
        let mut next = || ports.next().ok_or("the server did not start");
        let (port, plain_port) = (next()??, next()??);
        Ok(Self { child, folder, port, plain_port })
    }

    /// Where it speaks TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it does not.
    #[must_use]
    pub fn plain_port(&self) -> u16 {
        self.plain_port
    }

    /// The file with the certificate of its authority.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The certificate of its authority.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub fn authority(&self) -> Result<String, TrialError> {
        Ok(fs::read_to_string(self.authority_file())?)
    }

    /// A policy that leads to it: its TLS is passed through, or read.
    #[must_use]
    pub fn policy(&self, reads: bool) -> String {
        let read = if reads { "\n  http: [{methods: [GET, HEAD, POST]}]" } else { "" };
        format!(
            "rules:\n- allow: packages.test\n  ports: [{}]\n  protocol: tls{read}\n- allow: packages.test\n  ports: [{}]\n  \
             protocol: http\nhosts: {{packages.test: 127.0.0.1}}\nupstream: {{roots: '{}'}}\n",
            self.port,
            self.plain_port,
            self.authority_file().display()
        )
    }
}

impl Drop for PackageServer {
    fn drop(&mut self) {
        // One that has ended is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
