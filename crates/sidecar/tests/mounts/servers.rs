//! Servers of object storage, started on ports of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bastide_mount::{AzureAuth, GcsAuth, Keys, MountSpec, Secret, Source};

/// Generous: another server may be starting on the same two cores.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server, ended with the value.
pub(crate) struct Server {
    child: Option<Child>,
    pub(crate) port: u16,
    pub(crate) kind: Kind,
    _folder: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Moto,
    S3rver,
    Azurite,
    Gcs,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Moto, Self::S3rver, Self::Azurite, Self::Gcs];

    /// The program, if the test command has installed it.
    fn program(self) -> Option<PathBuf> {
        let name = match self {
            Self::Moto => "venv/bin/moto_server",
            Self::S3rver => "npm/node_modules/.bin/s3rver",
            Self::Azurite => "npm/node_modules/.bin/azurite-blob",
            Self::Gcs => "venv/bin/gcp-storage-emulator",
        };
        Some(tools().join(name)).filter(|path| path.exists())
    }
}

/// Where `cargo xtask test` puts servers.
pub(crate) fn tools() -> PathBuf {
    match std::env::var_os("BASTIDE_TEST_MOUNT_TOOLS") {
        Some(given) => given.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mount-tools"),
    }
}

/// A port that nobody has now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Counts what this machine cannot run.
pub(crate) fn skip(what: &str) {
    let line = format!("{what} is not installed");
    eprintln!("skipped: {line}");
    if let Some(list) = std::env::var_os("BASTIDE_TEST_SKIPPED") {
        let mut list = std::fs::File::options().append(true).open(list).unwrap();
        writeln!(list, "mounts: {line}").unwrap();
    }
}

impl Server {
    /// Starts it with an empty bucket `data`; none if it is not installed.
    pub(crate) fn start(kind: Kind) -> Option<Self> {
        let Some(program) = kind.program() else {
            skip(&format!("{kind:?}"));
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let mut server = Self { child: None, port, kind, _folder: folder };
        server.launch(&program);
        server.make_bucket();
        Some(server)
    }

    fn launch(&mut self, program: &Path) {
        let port = self.port.to_string();
        let data = self._folder.path().join("objects");
        std::fs::create_dir_all(&data).unwrap();
        let data = data.to_str().unwrap();
        let arguments: Vec<&str> = match self.kind {
            Kind::Moto => vec!["-H", "127.0.0.1", "-p", &port],
            Kind::S3rver => vec![
                "-a",
                "127.0.0.1",
                "-p",
                &port,
                "-d",
                data,
                "--silent",
                "--configure-bucket",
                "data",
            ],
            Kind::Azurite => vec![
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                &port,
                "--location",
                data,
                "--silent",
                "--skipApiVersionCheck",
                "--disableTelemetry",
            ],
            Kind::Gcs => vec!["start", "--host=127.0.0.1", "--in-memory", "--default-bucket=data"],
        };
        let mut command = Command::new(program);
        command.args(arguments).env_remove("AWS_CA_BUNDLE").stdin(Stdio::null());
        if self.kind == Kind::Gcs {
            command.arg(format!("--port={port}"));
        }
        self.child = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begin.elapsed() < DEADLINE, "{:?} does not listen", self.kind);
            std::thread::yield_now();
        }
    }

    /// Starts it again where it was.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let program = self.kind.program().unwrap();
        self.launch(&program);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            child.wait().unwrap();
        }
    }

    fn make_bucket(&self) {
        match self.kind {
            Kind::Moto => drop(request(self.port, "PUT /data HTTP/1.1", "")),
            Kind::Azurite => {
                let remote = format!(
                    ":azureblob,account=devstoreaccount1,key='{AZURITE_KEY}',endpoint='{}':data",
                    self.endpoint()
                );
                let rclone = tools().join("venv/bin/rclone");
                let done = Command::new(rclone).args(["mkdir", &remote]).status();
                assert!(done.unwrap().success(), "no container");
            }
            Kind::S3rver | Kind::Gcs => {}
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        let path = if self.kind == Kind::Azurite { "/devstoreaccount1" } else { "" };
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The bucket `data` of it.
    pub(crate) fn source(&self) -> Source {
        self.source_at(&self.endpoint())
    }

    /// The same, reached another way.
    pub(crate) fn source_at(&self, endpoint: &str) -> Source {
        let endpoint = Some(endpoint.to_owned());
        let (id, secret) = match self.kind {
            Kind::S3rver => ("S3RVER", "S3RVER"),
            _ => ("AKID", "s3cr3t"),
        };
        let keys = Keys {
            access_key_id: id.into(),
            secret_access_key: Secret::new(secret),
            session_token: None,
        };
        match self.kind {
            Kind::Azurite => Source::AzureBlob {
                account: "devstoreaccount1".into(),
                container: "data".into(),
                endpoint,
                auth: AzureAuth::Key { key: Secret::new(AZURITE_KEY) },
            },
            Kind::Gcs => Source::Gcs {
                bucket: "data".into(),
                endpoint,
                region: None,
                auth: GcsAuth::Anonymous,
            },
            Kind::Moto | Kind::S3rver => {
                let (region, path_style) = (None, None);
                Source::S3 { bucket: "data".into(), region, endpoint, keys: Some(keys), path_style }
            }
        }
    }

    /// A writable mount of it.
    pub(crate) fn spec(&self) -> MountSpec {
        MountSpec { read_only: false, ..MountSpec::new("m", self.source()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One request without keys; the status line and the body.
pub(crate) fn request(port: u16, line: &str, body: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let length = body.len();
    write!(
        stream,
        "{line}\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .unwrap();
    let mut reader = BufReader::new(stream);
    let mut status = String::new();
    reader.read_line(&mut status).unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    (status, rest)
}
