//! Servers of object storage on ports of their own, which end with this program however it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::suite::{TrialError, skip};

/// Generous: other servers may be starting on the same processors.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// The key that the emulator of Azure's storage is known for.
pub(super) const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Starts a program and ends it when standard input does, which is when this program has ended.
const UNTIL_EOF: &str = "\"$@\" </dev/null & p=$!; read -r x; kill -9 $p; wait $p";

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Moto,
    S3rver,
    Azurite,
    Gcs,
}

impl Kind {
    /// Its program, among the tools.
    fn program(self) -> &'static str {
        match self {
            Self::Moto => "venv/bin/moto_server",
            Self::S3rver => "npm/node_modules/.bin/s3rver",
            Self::Azurite => "npm/node_modules/.bin/azurite-blob",
            Self::Gcs => "venv/bin/gcp-storage-emulator",
        }
    }
}

/// A server with a bucket `data`; ended with the value.
#[derive(Debug)]
pub(super) struct Server {
    keeper: Child,
    pub(super) port: u16,
    pub(super) kind: Kind,
    _folder: tempfile::TempDir,
}

/// Where `cargo xtask test` puts the programs.
pub(super) fn tools() -> PathBuf {
    match std::env::var_os("BASTIDE_TEST_MOUNT_TOOLS") {
        Some(given) => given.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mount-tools"),
    }
}

/// Whether a program is there, and what interprets it is there for this user.
fn can_be_started(program: &Path) -> bool {
    let Ok(text) = std::fs::read(program) else { return false };
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let interpreter = first.strip_prefix("#!").and_then(|line| line.split_whitespace().next());
    interpreter.is_none_or(|interpreter| Path::new(interpreter).exists())
}

/// A port that nobody has now.
pub(super) fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A server that all trials of a run share; started by the first that needs it.
pub(super) fn shared(kind: Kind) -> Result<&'static Server, TrialError> {
    static STARTED: Mutex<Vec<&'static Server>> = Mutex::new(Vec::new());
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(server) = started.iter().find(|server| server.kind == kind) {
        return Ok(server);
    }
    let server: &'static Server = Box::leak(Box::new(Server::start(kind)?));
    started.push(server);
    Ok(server)
}

impl Server {
    /// Starts one; skips the trial where it is not installed.
    pub(super) fn start(kind: Kind) -> Result<Self, TrialError> {
        if !can_be_started(&tools().join(kind.program())) {
            return Err(skip(format!("{kind:?} is not installed, or not for this user")));
        }
        let folder = tempfile::tempdir()?;
        let port = free_port()?;
        let keeper = Self::launch(kind, &folder, port)?;
        let server = Self { keeper, port, kind, _folder: folder };
        server.make_ready()?;
        Ok(server)
    }

    /// Starts it again where it was, with nothing in it where it keeps nothing on disk.
    pub(super) fn restart(&mut self) -> Result<(), TrialError> {
        self.kill();
        self.keeper = Self::launch(self.kind, &self._folder, self.port)?;
        self.make_ready()
    }

    fn launch(kind: Kind, folder: &tempfile::TempDir, port: u16) -> Result<Child, TrialError> {
        let program = tools().join(kind.program());
        let data = folder.path().join("objects");
        std::fs::create_dir_all(&data)?;
        let data = data.display().to_string();
        let line = match kind {
            Kind::Moto => format!("-H 127.0.0.1 -p {port}"),
            Kind::S3rver => {
                format!("-a 127.0.0.1 -p {port} -d {data} --silent --configure-bucket data")
            }
            Kind::Azurite => format!(
                "--blobHost 127.0.0.1 --blobPort {port} --location {data} --silent \
                 --skipApiVersionCheck --disableTelemetry"
            ),
            Kind::Gcs => {
                format!("start --host=127.0.0.1 --port={port} --in-memory --default-bucket=data")
            }
        };
        let mut command = Command::new("sh");
        command.args(["-c", UNTIL_EOF, "sh"]).arg(program).args(line.split_ascii_whitespace());
        command.current_dir(folder.path()).env_remove("AWS_CA_BUNDLE");
        if kind == Kind::S3rver {
            // Its tokens for the next page are made with a cipher that OpenSSL 3 has put aside.
            command.env("NODE_OPTIONS", "--openssl-legacy-provider");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command.spawn()?)
    }

    fn make_ready(&self) -> Result<(), TrialError> {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if begin.elapsed() > DEADLINE {
                return Err(format!("{:?} does not listen", self.kind).into());
            }
            std::thread::yield_now();
        }
        self.make_bucket()
    }

    fn make_bucket(&self) -> Result<(), TrialError> {
        match self.kind {
            Kind::Moto => drop(request(self.port, "PUT /data HTTP/1.1", b"")?),
            Kind::Azurite => {
                let remote = format!(
                    ":azureblob,account=devstoreaccount1,key='{AZURITE_KEY}',endpoint='{}':data",
                    self.endpoint()
                );
                let mut rclone = Command::new(tools().join("venv/bin/rclone"));
                rclone.args(["mkdir", &remote]).stderr(Stdio::null());
                if !rclone.status()?.success() {
                    return Err("the emulator makes no container".into());
                }
            }
            Kind::S3rver | Kind::Gcs => {}
        }
        Ok(())
    }

    /// Ends it as a crash would.
    pub(super) fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        drop(self.keeper.wait());
    }

    pub(super) fn endpoint(&self) -> String {
        let path = if self.kind == Kind::Azurite { "/devstoreaccount1" } else { "" };
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// What a manifest calls it.
    pub(super) fn provider(&self) -> &'static str {
        match self.kind {
            Kind::Moto | Kind::S3rver => "s3",
            Kind::Azurite => "azure_blob",
            Kind::Gcs => "gcs",
        }
    }

    /// The folder `prefix` of its bucket, reached with keys whose secret half is `secret` where it takes any.
    pub(super) fn store(&self, prefix: &str, secret: &str) -> Value {
        let endpoint = self.endpoint();
        let (id, secret) =
            if self.kind == Kind::S3rver { ("S3RVER", "S3RVER") } else { ("AKID", secret) };
        let keys = json!({"access_key_id": id, "secret_access_key": secret});
        let source = match self.kind {
            Kind::Moto | Kind::S3rver => {
                json!({"type": "s3", "bucket": "data", "endpoint": endpoint, "keys": keys})
            }
            Kind::Azurite => json!({
                "type": "azure_blob", "account": "devstoreaccount1", "container": "data",
                "endpoint": endpoint, "auth": {"type": "key", "key": AZURITE_KEY},
            }),
            Kind::Gcs => json!({"type": "gcs", "bucket": "data", "endpoint": endpoint}),
        };
        json!({"source": source, "prefix": prefix})
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One request without keys; the status line, and what follows it.
pub(super) fn request(port: u16, line: &str, body: &[u8]) -> std::io::Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    let length = body.len();
    write!(
        stream,
        "{line}\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)?;
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status)?;
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest)?;
    Ok((status, rest))
}
