//! One mount of each provider that a real server can stand for, by rclone inside a container that has the
//! host's network.

use std::path::{Path, PathBuf};
use std::process::{Child, Command as HostCommand, Stdio};
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{CreateOptions, NetworkAccess, Session};
use bastide_testkit::engine::images;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use bastide_testkit::trials;
use serde_json::json;

use super::mounts::{MountSetup, rclone, tools};
use super::setting::{Setting, base};

pub(crate) const TRIALS: &[Trial] = trials![
    mounts_the_stores_of_every_provider,
    mounts_with_a_mount_s3_over_the_library_of_the_real_one,
];

/// An image with that program in it.
const MOUNTPOINT: &str = "bastide-test/mountpoint";

/// How long a server may take to come up on a busy machine.
const DEADLINE: Duration = Duration::from_secs(90);

/// The key every Azurite has.
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A process of the host that ends with the trial.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A server, and how rclone of the host speaks to it.
struct Server {
    _process: Serving,
    port: u16,
    remote: Vec<String>,
    backend: &'static str,
}

impl Server {
    async fn start(
        program: &Path,
        backend: &'static str,
        arguments: impl Fn(u16) -> Vec<String> + Send,
        remote: impl Fn(u16) -> Vec<String> + Send,
    ) -> Result<Self, TrialError> {
        if !program.exists() {
            return Err(skip(format!("{} is not installed", program.display())));
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = HostCommand::new(program);
        command.args(arguments(port)).env_remove("AWS_CA_BUNDLE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server =
            Self { _process: Serving(command.spawn()?), port, remote: remote(port), backend };
        let deadline = Instant::now() + DEADLINE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err(format!("{} did not come up", program.display()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    /// Runs rclone of the host on the bucket `data`.
    fn rclone(&self, verb: &str, object: &str, input: &str) -> Result<String, TrialError> {
        let mut command = HostCommand::new(rclone()?);
        let bucket = if object.is_empty() { "data".to_owned() } else { format!("data/{object}") };
        command.arg(verb).arg(format!(":{}:{bucket}", self.backend)).args(&self.remote);
        command.args(["--retries", "3"]).env_remove("AWS_CA_BUNDLE");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            std::io::Write::write_all(&mut stdin, input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    }
}

fn words<const N: usize>(words: [String; N]) -> Vec<String> {
    words.to_vec()
}

async fn moto(tools: &Path) -> Result<Server, TrialError> {
    Server::start(
        &tools.join("venv/bin/moto_server"),
        "s3",
        |port| words(["-H".into(), "127.0.0.1".into(), "-p".into(), port.to_string()]),
        |port| {
            words([
                "--s3-provider=Other".into(),
                "--s3-access-key-id=AKIDTRIAL".into(),
                "--s3-secret-access-key=key-of-the-trial".into(),
                format!("--s3-endpoint=http://127.0.0.1:{port}"),
            ])
        },
    )
    .await
}

async fn azurite(tools: &Path, folder: &Path) -> Result<Server, TrialError> {
    let folder = folder.display().to_string();
    Server::start(
        &tools.join("npm/node_modules/.bin/azurite-blob"),
        "azureblob",
        |port| {
            words([
                "--blobHost=127.0.0.1".into(),
                format!("--blobPort={port}"),
                format!("--location={folder}"),
                "--silent".into(),
                "--skipApiVersionCheck".into(),
                "--disableTelemetry".into(),
            ])
        },
        |port| {
            words([
                "--azureblob-account=devstoreaccount1".into(),
                format!("--azureblob-key={AZURITE_KEY}"),
                format!("--azureblob-endpoint=http://127.0.0.1:{port}/devstoreaccount1"),
            ])
        },
    )
    .await
}

async fn gcs(tools: &Path) -> Result<Server, TrialError> {
    Server::start(
        &tools.join("venv/bin/gcp-storage-emulator"),
        "gcs",
        |port| {
            words([
                "start".into(),
                "--host=127.0.0.1".into(),
                format!("--port={port}"),
                "--in-memory".into(),
                "--default-bucket=data".into(),
            ])
        },
        |port| {
            words([
                "--gcs-anonymous=true".into(),
                format!("--gcs-endpoint=http://127.0.0.1:{port}/storage/v1/"),
            ])
        },
    )
    .await
}

async fn mounts_the_stores_of_every_provider(_: Context) -> Outcome {
    let trying = MountSetup::new()?;
    let tools: PathBuf = tools();
    let folder = tempfile::tempdir()?;
    let moto = moto(&tools).await?;
    let azurite = azurite(&tools, folder.path()).await?;
    let gcs = gcs(&tools).await?;
    let at = |server: &Server| format!("http://127.0.0.1:{}", server.port);
    let key = "key-of-the-trial";
    let cases = [
        (
            &moto,
            json!({"type": "s3_mount", "bucket": "data", "s3_provider": "Other",
            "endpoint_url": at(&moto), "access_key_id": "AKIDTRIAL", "secret_access_key": key}),
        ),
        (
            &moto,
            json!({"type": "r2_mount", "bucket": "data", "account_id": "a",
            "custom_domain": at(&moto), "access_key_id": "AKIDTRIAL", "secret_access_key": key}),
        ),
        (
            &moto,
            json!({"type": "gcs_mount", "bucket": "data", "endpoint_url": at(&moto),
            "access_id": "AKIDTRIAL", "secret_access_key": key}),
        ),
        (&gcs, json!({"type": "gcs_mount", "bucket": "data"})),
        (
            &azurite,
            json!({"type": "azure_blob_mount", "account": "devstoreaccount1",
            "container": "data", "endpoint": format!("{}/devstoreaccount1", at(&azurite)),
            "account_key": AZURITE_KEY}),
        ),
    ];
    for (server, mut mount) in cases {
        let kind = format!("{} on {}", mount["type"], server.backend);
        if server.backend != "gcs" {
            server.rclone("mkdir", "", "")?;
        }
        server.rclone("rcat", "seed", "from the store")?;
        mount["read_only"] = json!(false);
        mount["mount_strategy"] = json!({"type": "in_container", "pattern": {"type": "rclone"}});
        let environment =
            json!({"value": {"RCLONE_GCS_ENDPOINT": format!("{}/storage/v1/", at(&gcs))}});
        let manifest = json!({"entries": {"data": mount}, "environment": environment});
        let manifest: Manifest = bastide::model::lax::read::<Manifest>(&manifest)?;
        let holds_key = manifest.holds_mount_authority();
        let manifest = match holds_key {
            true => manifest.with_exposure_acknowledged_at(&["data"])?,
            false => manifest,
        };
        let mut options = CreateOptions::default();
        options.network = NetworkAccess::Host;
        let session = trying.client()?.create(&manifest, options).await;
        let session = session.map_err(|error| format!("{kind}: {error}"))?;
        assert_eq!(say(&session, "cat data/seed").await?, "from the store", "{kind}");
        say(&session, "echo new > data/made && rm data/seed").await?;
        session.delete().await?;
        assert_eq!(server.rclone("cat", "made", "")?, "new\n", "{kind}: it is in the store");
        assert_eq!(server.rclone("lsf", "", "")?, "made\n", "{kind}");
        server.rclone("deletefile", "made", "")?;
    }
    Ok(())
}

/// Gives an image without certificates one, whosever it is: without any, the library finds no key in the environment either.
async fn trust_somebody(session: &Session) -> Outcome {
    let all = std::fs::read_to_string("/etc/ssl/certs/ca-certificates.crt")?;
    let end = "-----END CERTIFICATE-----";
    let first = all.split_inclusive(end).next().unwrap_or_default();
    let put =
        format!("mkdir -p /etc/ssl/certs && echo '{first}' > /etc/ssl/certs/ca-certificates.crt");
    let output = session.exec(sh(&put).user("0")).await?;
    assert_eq!(output.exit.code, 0, "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The command line is ours, what mounts is Mountpoint for Amazon S3. It takes minutes to build, so that the big counts
/// alone build it.
async fn mounts_with_a_mount_s3_over_the_library_of_the_real_one(_: Context) -> Outcome {
    let program = tools().join("bin/mount-s3");
    if !program.exists() {
        return Err(skip("mount-s3, which is built for the big counts, is not there"));
    }
    let fusermount = Path::new("/usr/bin/fusermount3");
    if !Path::new("/dev/fuse").exists() || !fusermount.exists() {
        return Err(skip("there is no /dev/fuse or fusermount3 on this machine"));
    }
    let server = moto(&tools()).await?;
    server.rclone("mkdir", "", "")?;
    server.rclone("rcat", "in/seed", "from the store")?;
    let setting = Setting::prepared()?;
    if setting.docker(&["image", "ls", "--quiet", MOUNTPOINT])?.is_empty() {
        let programs = [(program.as_path(), "mount-s3"), (fusermount, "fusermount3")];
        images::make_with(&setting.host, MOUNTPOINT, &programs, &[])?;
    }
    let mut image = base();
    MOUNTPOINT.clone_into(&mut image.image);
    let client = setting.client(image)?;
    let manifest = |read_only: bool| -> Result<Manifest, TrialError> {
        let mount = json!({
            "type": "s3_mount", "bucket": "data", "prefix": "in/", "read_only": read_only,
            "endpoint_url": format!("http://127.0.0.1:{}", server.port), "region": "us-east-1",
            "access_key_id": "AKIDTRIAL", "secret_access_key": "key-of-the-trial",
            "mount_strategy": {"type": "in_container", "pattern": {"type": "mountpoint"}},
        });
        let manifest: Manifest = bastide::model::lax::read(&json!({"entries": {"data": mount}}))?;
        Ok(manifest.with_exposure_acknowledged_at(&["data"])?)
    };
    let mut options = CreateOptions::default();
    options.network = NetworkAccess::Host;
    let session = client.create_unstarted(&manifest(false)?, options.clone()).await?;
    trust_somebody(&session).await?;
    session.start().await?;
    assert_eq!(say(&session, "ls data; cat data/seed").await?, "seed\nfrom the store");
    say(&session, "echo new > data/made && mkdir data/more && echo x > data/more/x").await?;
    let mount = session.mounts().await?.remove(0);
    assert_eq!((mount.state.as_str(), mount.read_only), ("mounted", false), "{mount:?}");
    // What was written is in the store when the session is gone, and so is what nobody touched.
    session.delete().await?;
    assert_eq!(server.rclone("cat", "in/made", "")?, "new\n");
    assert_eq!(server.rclone("lsf", "in", "")?, "made\nmore/\nseed\n");
    let session = client.create_unstarted(&manifest(true)?, options).await?;
    trust_somebody(&session).await?;
    session.start().await?;
    assert_eq!(say(&session, "cat data/made data/more/x").await?, "new\nx\n");
    assert_ne!(session.exec(sh("echo x > data/x")).await?.exit.code, 0, "it is read-only");
    Ok(session.delete().await?)
}
