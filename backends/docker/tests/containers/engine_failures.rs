//! Daemons that cannot just now: what is asked again, and what is not.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bastide::model::snapshot::SnapshotSpec;
use bastide::model::{Manifest, PosixPath};
use bastide::{Client, CreateOptions, Error, SessionId, SnapshotChoice, Store};
use bastide_docker::{DockerBackend, EngineAddress};
use bastide_testkit::engine;
use bastide_testkit::suite::{Context, Outcome, Trial, TrialError, say, skip};
use bastide_testkit::trials;

use super::setting::base;

pub(crate) const TRIALS: &[Trial] = trials![
    saves_though_its_daemon_cannot_twice,
    gives_up_a_save_after_three_times,
    asks_once_where_asking_again_is_of_no_use,
    stops_and_saves_though_its_daemon_cannot_twice,
];

/// The longest head of a request.
const MAX_HEAD: usize = 64 * 1024;

/// What a proxy does to requests whose path has this end.
#[derive(Debug, Default)]
struct InjectedFailure {
    path: &'static str,
    status: u16,
    times: u32,
    seen: u32,
}

/// A proxy on loopback before the daemon's socket. It ends with the process; nobody else knows its port.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    injected: Arc<Mutex<InjectedFailure>>,
}

impl Proxy {
    pub(crate) fn start() -> Result<Self, TrialError> {
        let daemon = engine::for_tests()?;
        let socket = daemon.strip_prefix("unix://");
        let socket = socket.ok_or_else(|| skip("the daemon has no socket here"))?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let host = format!("tcp://{}", listener.local_addr()?);
        let injected = Arc::new(Mutex::new(InjectedFailure::default()));
        let shared = Arc::clone(&injected);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let (injected, socket) = (Arc::clone(&shared), socket.clone());
                // A connection that breaks is the client's to notice.
                thread::spawn(move || drop(serve(client, &socket, &injected)));
            }
        });
        Ok(Self { host, injected })
    }

    /// Answers the next requests to a path with a status.
    fn fail(&self, path: &'static str, status: u16, times: u32) {
        let mut injected = self.injected.lock().unwrap_or_else(PoisonError::into_inner);
        *injected = InjectedFailure { path, status, times, seen: 0 };
    }

    /// How many such requests came since then.
    fn seen(&self) -> u32 {
        self.injected.lock().unwrap_or_else(PoisonError::into_inner).seen
    }
}

/// Serves one connection, which carries one request: the answer says that none may follow.
fn serve(mut client: TcpStream, socket: &str, injected: &Mutex<InjectedFailure>) -> io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD || client.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let refused = {
        let mut injected = injected.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = !injected.path.is_empty() && path.ends_with(injected.path);
        injected.seen += u32::from(is_meant);
        (is_meant && injected.seen <= injected.times).then_some(injected.status)
    };
    if let Some(status) = refused {
        let body = "{\"message\":\"not just now\"}";
        write!(
            client,
            "HTTP/1.1 {status} Trouble\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        )?;
        client.shutdown(Shutdown::Write)?;
        // What is left of the request must be read, or the answer is lost with it.
        return io::copy(&mut client, &mut io::sink()).map(drop);
    }
    let mut daemon = UnixStream::connect(socket)?;
    let is_upgrade = text.to_ascii_lowercase().contains("\r\nupgrade:");
    let head = match is_upgrade {
        true => text,
        false => text.replacen("\r\n", "\r\nConnection: close\r\n", 1),
    };
    daemon.write_all(head.as_bytes())?;
    let (mut from_client, mut to_daemon) = (client.try_clone()?, daemon.try_clone()?);
    let sending = thread::spawn(move || {
        drop(io::copy(&mut from_client, &mut to_daemon));
        drop(to_daemon.shutdown(Shutdown::Write));
    });
    drop(io::copy(&mut daemon, &mut client));
    client.shutdown(Shutdown::Both)?;
    drop(sending.join());
    Ok(())
}

/// A session behind a proxy, and a way to it that is used for the first time.
struct ProxiedSession {
    proxy: Proxy,
    client: Client,
    id: SessionId,
    home: tempfile::TempDir,
    store: Store,
}

fn client(home: &Path, proxy: &Proxy) -> Result<Client, TrialError> {
    let address = EngineAddress::parse(&proxy.host, None)?;
    Ok(Client::new(Arc::new(DockerBackend::new(home, address, base())?)))
}

async fn behind() -> Result<ProxiedSession, TrialError> {
    let proxy = Proxy::start()?;
    let home = tempfile::tempdir()?;
    let client = || client(home.path(), &proxy);
    let mut options = CreateOptions::default();
    options.tied_to_owner = false;
    let folder = home.path().join("kept");
    std::fs::create_dir(&folder)?;
    let base_path = PosixPath::new(folder.to_str().ok_or("a folder that is no text")?);
    options.snapshot = Some(SnapshotChoice::Spec(SnapshotSpec::Local { base_path }));
    let session = client()?.create(&Manifest::default(), options).await?;
    say(&session, "echo kept > file").await?;
    let id = session.id().clone();
    drop(session);
    let store = Store::open(home.path().join("store"))?;
    let client = client()?;
    Ok(ProxiedSession { proxy, client, id, home, store })
}

impl ProxiedSession {
    /// The same, for somebody who has not talked to the daemon yet.
    fn anew(self) -> Result<Self, TrialError> {
        let client = client(self.home.path(), &self.proxy)?;
        Ok(Self { client, ..self })
    }

    async fn save(&self) -> Result<u64, Error> {
        let saved = self.client.save_snapshot(&self.id, &self.store, "saved", None).await;
        saved.map(|saved| saved.info.entries)
    }

    async fn delete(&self) -> Outcome {
        self.proxy.fail("", 0, 0);
        self.client.delete(&self.id).await?;
        Ok(())
    }
}

/// The way in is a command in the container, which the daemon is asked for.
const WAY_IN: &str = "/exec";

async fn saves_though_its_daemon_cannot_twice(_: Context) -> Outcome {
    let behind = behind().await?;
    for status in [500, 502, 503, 504] {
        behind.proxy.fail(WAY_IN, status, 2);
        assert_eq!(behind.save().await?, 2, "{status}");
        assert_eq!(behind.proxy.seen(), 3, "{status}");
    }
    // Whoever is new to it agrees with it on a version before anything else.
    let behind = behind.anew()?;
    behind.proxy.fail("/version", 503, 2);
    assert_eq!((behind.save().await?, behind.proxy.seen()), (2, 3));
    behind.delete().await
}

async fn gives_up_a_save_after_three_times(_: Context) -> Outcome {
    let behind = behind().await?;
    behind.proxy.fail(WAY_IN, 503, 4);
    let error = behind.save().await.err().ok_or("it was saved without a way in")?;
    assert_eq!((behind.proxy.seen(), error.is_retryable()), (3, Some(true)), "{error}");
    assert_eq!(behind.store.list()?.len(), 0, "nothing is half saved");
    behind.delete().await
}

async fn asks_once_where_asking_again_is_of_no_use(_: Context) -> Outcome {
    let behind = behind().await?;
    for status in [404, 409, 429, 501] {
        behind.proxy.fail(WAY_IN, status, 4);
        let error = behind.save().await.err().ok_or("it was saved without a way in")?;
        assert_eq!((behind.proxy.seen(), error.is_retryable()), (1, None), "{status}: {error}");
    }
    // Only saving waits for a daemon.
    behind.proxy.fail(WAY_IN, 503, 4);
    let refused = behind.client.attach(&behind.id).await.map(drop);
    assert!(refused.is_err() && behind.proxy.seen() == 1, "{refused:?}");
    behind.delete().await
}

async fn stops_and_saves_though_its_daemon_cannot_twice(_: Context) -> Outcome {
    let behind = behind().await?;
    behind.proxy.fail(WAY_IN, 503, 2);
    let saved = behind.client.stop(&behind.id).await?;
    assert!(saved.fingerprint.is_some() && behind.proxy.seen() == 3, "{saved:?}");
    let session = behind.client.resume(&behind.id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    drop(session);
    // A daemon that cannot say whether the session runs is no reason not to save it either.
    behind.proxy.fail("/json", 503, 2);
    let saved = behind.client.stop(&behind.id).await?;
    assert!(saved.fingerprint.is_some(), "{saved:?}");
    behind.delete().await
}
