//! What users would use instead.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The floor: starting a program and waiting for it.
pub(crate) fn spawn_true() -> io::Result<Duration> {
    let started = Instant::now();
    let status = Command::new("/bin/true").stdin(Stdio::null()).status()?;
    let took = started.elapsed();
    if status.success() { Ok(took) } else { Err(io::Error::other("/bin/true failed")) }
}

/// bubblewrap, told to confine as much as we do.
#[derive(Debug)]
pub(crate) struct Bwrap {
    workspace: PathBuf,
}

impl Bwrap {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { workspace: folder.join("bwrap") }
    }

    /// A new sandbox, to the end of its first command.
    pub(crate) fn run(&self) -> io::Result<Duration> {
        std::fs::create_dir_all(&self.workspace)?;
        let started = Instant::now();
        let output = Command::new("bwrap")
            .args(["--unshare-all", "--ro-bind", "/usr", "/usr"])
            .args(["--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"])
            .args(["--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin"])
            .args(["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind"])
            .arg(&self.workspace)
            .args(["/workspace", "--chdir", "/workspace", "echo", "hello"])
            .stdin(Stdio::null())
            .output()?;
        let took = started.elapsed();
        if output.stdout == b"hello\n" { Ok(took) } else { Err(io::Error::other("bwrap failed")) }
    }
}

/// The reference's local client, in a warm process of its own.
#[derive(Debug)]
pub(crate) struct Reference {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Reference {
    pub(crate) fn start(python: &Path, folder: &Path) -> io::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/reference.py");
        let mut child = Command::new(python)
            .arg(script)
            .env("TMPDIR", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("no pipe");
        let orders = child.stdin.take().ok_or_else(missing)?;
        let answers = BufReader::new(child.stdout.take().ok_or_else(missing)?);
        let mut reference = Self { child, orders, answers };
        match reference.line()?.as_str() {
            "ready" => Ok(reference),
            other => Err(io::Error::other(format!("the reference said {other:?}"))),
        }
    }

    /// How long the reference takes for one operation, by its own clock.
    pub(crate) fn measure(&mut self, operation: &str) -> io::Result<Duration> {
        writeln!(self.orders, "{operation}")?;
        let seconds: f64 = self.line()?.parse().map_err(io::Error::other)?;
        Ok(Duration::from_secs_f64(seconds))
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
