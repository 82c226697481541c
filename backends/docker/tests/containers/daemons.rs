//! Daemons that restart, go away, are far away; and registries.

use std::path::Path;
use std::process::{Child, Command as Program, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::model::Manifest;
use bastide::{Client, CreateOptions, ErrorKind, NetworkAccess, SessionStatus};
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_testkit::engine::{self, Daemon, DaemonOptions, images};
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, sh, skip};
use bastide_testkit::trials;

use super::setting::{Setting, base};

pub(crate) const TRIALS: &[Trial] = trials![
    comes_back_after_its_daemon_restarted,
    says_that_its_daemon_is_gone,
    reaches_a_daemon_over_tcp_with_tls,
    pulls_from_a_registry,
    resumes_on_a_daemon_that_does_not_see_this_hosts_files,
    goes_on_when_the_way_to_its_daemon_is_cut,
    refuses_a_bridge_its_daemon_does_not_have,
];

/// How long something may take that happens by itself.
const SOON: Duration = Duration::from_secs(30);

/// A daemon of the trial's own, with the images.
pub(crate) fn own_daemon(folder: &Path, options: &DaemonOptions) -> Result<Daemon, TrialError> {
    let daemon = Daemon::start(folder, options).map_err(|error| skip(error.to_string()))?;
    images::make(&daemon.host())?;
    Ok(daemon)
}

fn detached() -> CreateOptions {
    CreateOptions::default().detached()
}

async fn comes_back_after_its_daemon_restarted(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let mut daemon = own_daemon(&folder.path().join("daemon"), &DaemonOptions::default())?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let session = client.create(&Manifest::default(), detached()).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    daemon.restart()?;
    let lost = session.exec(bastide_testkit::suite::sh("true")).await.map(drop);
    assert!(lost.is_err(), "its container ended with the daemon");
    drop(session);
    assert_eq!(client.inspect(&id).await?.status, SessionStatus::Ended);
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    Ok(session.delete().await?)
}

async fn says_that_its_daemon_is_gone(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let live =
        DaemonOptions { arguments: vec!["--live-restore".to_owned()], ..DaemonOptions::default() };
    let mut daemon = own_daemon(&folder.path().join("daemon"), &live)?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let session = client.create(&Manifest::default(), detached()).await?;
    daemon.end();
    // What is up needs no daemon.
    assert_eq!(say(&session, "echo alive").await?, "alive\n");
    let refused = client.create(&Manifest::default(), detached()).await.map(drop);
    let error = refused.err().ok_or("it was made without a daemon")?;
    assert_eq!(error.kind(), ErrorKind::BackendLost);
    assert!(error.hint().is_some(), "it says what to do");
    daemon.restart()?;
    let id = session.id().clone();
    drop(session);
    let session = client.attach(&id).await?;
    assert_eq!(say(&session, "echo alive").await?, "alive\n", "it is still the same");
    Ok(session.delete().await?)
}

/// Makes certificates for a daemon on loopback and for its clients.
fn certificates(folder: &Path) -> std::io::Result<()> {
    let script = "set -e
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca-key.pem -out ca.pem
        for who in server client; do
          openssl req -newkey rsa:2048 -nodes -subj /CN=$who -keyout $who-key.pem -out $who.csr
          printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\\nextendedKeyUsage=%sAuth\\n' $who > $who.ext
          openssl x509 -req -days 2 -in $who.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \\
            -extfile $who.ext -out $who.pem
        done
        cp client.pem cert.pem; cp client-key.pem key.pem";
    let mut openssl = Program::new("sh");
    openssl.args(["-c", script]).current_dir(folder).stdin(Stdio::null());
    let output = openssl.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// A port of loopback that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

async fn reaches_a_daemon_over_tcp_with_tls(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    certificates(folder.path()).map_err(|error| skip(error.to_string()))?;
    let port = free_port()?;
    let tls = Some((port, folder.path().to_owned()));
    let options = DaemonOptions { tls, ..DaemonOptions::default() };
    let daemon = own_daemon(&folder.path().join("daemon"), &options)?;
    let home = tempfile::tempdir()?;
    let host = format!("tcp://127.0.0.1:{port}");
    let address = EngineAddress::parse(&host, Some(folder.path().to_owned()))?;
    let make = || DockerBackend::new(home.path(), address.clone(), base());
    let client = Client::new(Arc::new(make()?));
    let session = client.create(&Manifest::default(), detached()).await?;
    let id = session.id().clone();
    assert_eq!(say(&session, "echo hello; pwd").await?, "hello\n/workspace\n");
    let large: Vec<u8> = (0..=u8::MAX).cycle().take(3_000_000).collect();
    session.files().write("large", large.clone()).await?;
    assert!(session.files().read("large").await? == large);
    drop(session);
    // Another process would come in by another command, and find the same guest.
    let session = Client::new(Arc::new(make()?)).attach(&id).await?;
    assert_eq!(say(&session, "wc -c < large").await?, "3000000\n");
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "wc -c < large").await?, "3000000\n");
    // What nobody leads to any more is found there too; what somebody does stays.
    let stray = client.create(&Manifest::default(), detached()).await?;
    let lost = stray.id().clone();
    drop(stray);
    std::fs::remove_dir_all(home.path().join("sessions").join(lost.as_str()))?;
    let report = client.sweep().await?;
    assert_eq!(report.failed, []);
    assert!(report.removed.iter().any(|swept| swept.what.contains(lost.as_str())), "{report:?}");
    assert_eq!(say(&session, "echo here").await?, "here\n");
    session.delete().await?;
    let left = engine::docker(&daemon.host(), &["ps", "--all", "--quiet"])?;
    assert_eq!(left, "");
    let volumes = engine::docker(&daemon.host(), &["volume", "ls", "--quiet"])?;
    assert_eq!(volumes.lines().count(), 1, "only the guest's own volume stays: {volumes}");
    // Whoever has no certificate is told so, and gets nothing.
    let plain = EngineAddress::parse(&host, None)?;
    let stranger = Client::new(Arc::new(DockerBackend::new(home.path(), plain, base())?));
    let refused = stranger.create(&Manifest::default(), detached()).await.map(drop);
    assert!(refused.is_err());
    Ok(())
}

/// A registry that ends with the trial.
struct Registry(Child);

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

async fn pulls_from_a_registry(_: Context) -> Outcome {
    let setting = Setting::prepared()?;
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let config = format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:{port}\n",
        folder.path().join("data").display()
    );
    std::fs::write(folder.path().join("config.yml"), config)?;
    let mut program = Program::new("docker-registry");
    program.arg("serve").arg(folder.path().join("config.yml"));
    program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = program.spawn().map_err(|error| skip(format!("docker-registry: {error}")))?;
    let _registry = Registry(started);
    let deadline = Instant::now() + SOON;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "the registry does not come up");
        tokio::task::yield_now().await;
    }
    let name = format!("127.0.0.1:{port}/bastide/pulled:tagged");
    setting.docker(&["tag", images::BASE, &name])?;
    setting.docker(&["push", &name])?;
    setting.docker(&["rmi", &name])?;
    let backend = setting.backend(DockerOptions::new(&name))?;
    assert!(!backend.image_exists(&name).await?);
    let said = Arc::new(std::sync::Mutex::new(Vec::new()));
    let received = Arc::clone(&said);
    let backend = backend.with_progress(move |step| {
        if let Ok(mut received) = received.lock() {
            received.push(step.to_owned());
        }
    });
    let client = Client::new(Arc::new(backend));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    assert_eq!(say(&session, "echo pulled").await?, "pulled\n");
    session.delete().await?;
    assert!(said.lock().is_ok_and(|said| !said.is_empty()), "nobody received how far it was");
    setting.docker(&["rmi", &name])?;

    let missing = format!("127.0.0.1:{port}/bastide/missing:tagged");
    let client = setting.client(DockerOptions::new(&missing))?;
    let refused = client.create(&Manifest::default(), CreateOptions::default()).await.map(drop);
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    Ok(())
}

async fn resumes_on_a_daemon_that_does_not_see_this_hosts_files(_: Context) -> Outcome {
    let (folder, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let options =
        DaemonOptions { hidden: Some(home.path().to_owned()), ..DaemonOptions::default() };
    let daemon = own_daemon(&folder.path().join("daemon"), &options)?;
    let address = EngineAddress::parse(&daemon.host(), None)?;
    let client = Client::new(Arc::new(DockerBackend::new(home.path(), address, base())?));
    let session = client.create(&Manifest::default(), detached()).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    drop(session);
    client.stop(&id).await?;
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    drop(session);
    client.stop(&id).await?;
    // Its container is gone, and what the daemon finds at our paths is something else.
    engine::docker(&daemon.host(), &["rm", &format!("bastide-{id}")])?;
    let guest = std::fs::read_dir(home.path().join("guests"))?.next().ok_or("no guest")??.path();
    let run = home.path().join("sessions").join(id.as_str()).join("run");
    let mut nsenter = Program::new("nsenter");
    nsenter.args(["--mount", "--target", &daemon.pid().to_string(), "sh", "-ec"]);
    nsenter.arg("mkdir -p \"$0\" \"$(dirname \"$1\")\"; cp /bin/true \"$1\"").arg(run).arg(guest);
    assert!(nsenter.status()?.success());
    let session = client.resume(&id).await?;
    assert_eq!(say(&session, "echo up").await?, "up\n");
    session.delete().await?;
    assert_eq!(engine::docker(&daemon.host(), &["ps", "--all", "--quiet"])?, "");
    Ok(())
}

/// Carries connections to a daemon, and cuts all of them when it is told to.
struct TunnelledSocket {
    cuts: tokio::sync::watch::Sender<u32>,
    carrying: tokio::task::JoinHandle<()>,
}

impl TunnelledSocket {
    fn open(path: &Path, daemon: std::path::PathBuf) -> std::io::Result<Self> {
        let listener = tokio::net::UnixListener::bind(path)?;
        let (cuts, cut) = tokio::sync::watch::channel(0);
        let carrying = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (daemon, mut cut) = (daemon.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut far) = tokio::net::UnixStream::connect(daemon).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Ok(Self { cuts, carrying })
    }
}

async fn goes_on_when_the_way_to_its_daemon_is_cut(_: Context) -> Outcome {
    let (folder, home) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let options =
        DaemonOptions { hidden: Some(home.path().to_owned()), ..DaemonOptions::default() };
    let daemon = own_daemon(&folder.path().join("daemon"), &options)?;
    let socket = folder.path().join("daemon/docker.sock");
    let path = folder.path().join("way.sock");
    let way = TunnelledSocket::open(&path, socket)?;
    let address = EngineAddress::parse(&format!("unix://{}", path.display()), None)?;
    let client = Client::new(Arc::new(DockerBackend::new(home.path(), address, base())?));
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    let line = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i; \
                [ $((i % 100)) -ne 0 ] || sleep 0.1; done; exit 7";
    let mut speaking = Box::pin(session.exec(sh(line)));
    let mut times = tokio::time::interval(Duration::from_millis(700));
    let output = loop {
        tokio::select! {
            output = &mut speaking => break output?,
            _ = times.tick() => way.cuts.send_modify(|cuts| *cuts += 1),
        }
    };
    drop(speaking);
    assert!(*way.cuts.borrow() > 3, "it was not cut");
    let expected: String = (1..=3000).map(|number| format!("line {number}\n")).collect();
    assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    assert_eq!(output.exit.code, 7);
    session.delete().await?;
    way.carrying.abort();
    drop(daemon);
    Ok(())
}

async fn refuses_a_bridge_its_daemon_does_not_have(_: Context) -> Outcome {
    let folder = tempfile::tempdir()?;
    let arguments = vec!["--bridge=none".to_owned()];
    let options = DaemonOptions { arguments, ..DaemonOptions::default() };
    let daemon = own_daemon(&folder.path().join("daemon"), &options)?;
    let setting = Setting::new(&daemon.host())?;
    let client = setting.client(base())?;
    let wanted = CreateOptions::default().network(NetworkAccess::Bridge);
    let refused = client.create(&Manifest::default(), wanted).await.map(drop);
    let error = refused.err().ok_or("it has a bridge")?;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("bridge"), "{error}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("::None") && hint.contains("::Host"), "{hint}");
    for list in [&["ps", "--all", "--quiet"][..], &["volume", "ls", "--quiet"][..]] {
        assert_eq!(setting.docker(list)?, "", "nothing was made");
    }
    assert_eq!(client.list().await?.len(), 0);
    // What it does have is to be had.
    let session = client.create(&Manifest::default(), CreateOptions::default()).await?;
    assert_eq!(say(&session, "echo up").await?, "up\n");
    Ok(session.delete().await?)
}
