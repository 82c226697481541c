//! Many calls over one byte stream.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bastide_proto::hello::{WELCOME_BYTES, check_welcome, hello_at};
use bastide_proto::{
    AcceptWhen, CONDUIT_VERSION, CONNECT_VERSION, Exec, LEASE_VERSION, MIN_VERSION, Request,
    TERMINAL_VERSION, TREE_TOKEN_VERSION, USAGE_VERSION, VERSION,
};
use bastide_wire::{CorkedStream, mux_config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use yamux::Mode;

use super::{Link, SideChannel, Stream};
use crate::backend::{Connection, Duplex};
use crate::link::fault::agent_lost;
use crate::{Error, ErrorKind, Result};

/// The most calls open at once on one link. Fewer than [`bastide_wire::MAX_STREAMS`], at which the
/// multiplexer drops the connection, so that neither end ever gets there.
const MAX_CALLS: usize = 200;

/// How long a guest may take to greet.
const GREETING: Duration = Duration::from_secs(5);

/// How long a guest may take to accept a request. It does so before it starts the work.
const ACCEPTANCE: Duration = Duration::from_secs(10);

/// How much later than the command's own deadline its acceptance may come, where it comes with the end.
pub(crate) const LATE: Duration = Duration::from_secs(3);

/// How often a guest with open calls is asked whether it is alive. A call that has no deadline of its
/// own would otherwise wait for a guest that stopped answering for ever.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A link that multiplexes calls over one byte stream, each with its own flow control.
#[derive(Debug)]
pub struct MuxLink {
    openers: mpsc::Sender<Opener>,
    /// The stream of the next call, which was ordered with the call before.
    ahead: Mutex<Option<Opened>>,
    calls: Arc<Semaphore>,
    side: Option<SideChannel>,
    protocol: u32,
    /// How long a guest may take to accept a request.
    accept_timeout: Duration,
}

type Opener = oneshot::Sender<Result<yamux::Stream>>;
type Opened = oneshot::Receiver<Result<yamux::Stream>>;

impl MuxLink {
    /// Performs the handshake with the guest and starts multiplexing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if nothing answers in time, or not a guest of ours.
    pub async fn connect(connection: Connection) -> Result<Self> {
        Self::connect_at(connection, VERSION).await
    }

    /// As [`connect`](Self::connect), to a guest that knows no later version of the protocol than that. A connection
    /// whose greeting was sent already is one to such a guest.
    ///
    /// # Errors
    ///
    /// As there; [`ErrorKind::Unsupported`] if this version is not spoken any more.
    pub async fn connect_at(connection: Connection, protocol: u32) -> Result<Self> {
        if protocol < MIN_VERSION {
            let message = format!(
                "its guest speaks version {protocol} of the protocol, and this program {MIN_VERSION} to {VERSION}"
            );
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("use the version of Bastide that started it, or stop and resume it"));
        }
        let Connection { mut stream, token, side, greeted, outage } = connection;
        let greet = async {
            if !greeted {
                stream.write_all(&hello_at(&token, protocol)).await?;
            }
            let mut welcome = [0; WELCOME_BYTES];
            stream.read_exact(&mut welcome).await?;
            check_welcome(&welcome).map_err(std::io::Error::other)
        };
        let protocol = match tokio::time::timeout(GREETING, greet).await {
            Ok(Ok(protocol)) => protocol,
            Ok(Err(error)) => return Err(agent_lost("the guest did not greet").with_source(error)),
            Err(_) => return Err(agent_lost("the guest did not greet in time")),
        };
        let stream = CorkedStream::new(stream);
        let connection =
            yamux::Connection::new(stream.clone().compat(), mux_config(), Mode::Client);
        let (openers, waiting) = mpsc::channel(MAX_CALLS);
        let calls = Arc::new(Semaphore::new(MAX_CALLS));
        let driving = tokio::spawn(drive(Driver {
            connection,
            stream,
            waiting,
            next: None,
            calls: Arc::clone(&calls),
        }));
        let link = openers.downgrade();
        let accept_timeout = ACCEPTANCE.saturating_add(outage);
        tokio::spawn(send_heartbeats(link, Arc::clone(&calls), driving, accept_timeout));
        // Without it everything goes over the link, only slower.
        let side = side.and_then(|side| SideChannel::new(side).ok());
        Ok(Self { openers, ahead: Mutex::new(None), calls, side, protocol, accept_timeout })
    }

    /// Whether no call is open.
    pub(crate) fn is_idle(&self) -> bool {
        self.calls.available_permits() == MAX_CALLS
    }

    /// A stream for a call. The guest hears of it with the first word on it, so one more costs nothing.
    async fn stream(&self) -> Result<yamux::Stream> {
        let (opener, opened) = oneshot::channel();
        // Where there is no room for it, the next call orders its own.
        let next = self.openers.try_send(opener).is_ok().then_some(opened);
        let ahead = {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *ahead, next)
        };
        match ahead {
            Some(opened) => opened.await.map_err(|_| link_closed())?,
            None => open_stream(&self.openers).await,
        }
    }
}

/// What every call says whose link is closed, whichever part of the call noticed it first.
pub(crate) fn link_closed() -> Error {
    agent_lost("the session does not answer any more: it was shut down or removed, or has ended")
        .with_hint("resume it, or list the sessions to see what became of it")
}

async fn open_stream(openers: &mpsc::Sender<Opener>) -> Result<yamux::Stream> {
    let (opener, opened) = oneshot::channel();
    openers.send(opener).await.map_err(|_| link_closed())?;
    opened.await.map_err(|_| link_closed())?
}

/// Asks the guest whether it is alive while calls are open, and closes the link when it is not: every
/// open call then fails.
async fn send_heartbeats(
    link: mpsc::WeakSender<Opener>,
    calls: Arc<Semaphore>,
    driving: JoinHandle<()>,
    accept_timeout: Duration,
) {
    while !driving.is_finished() {
        tokio::time::sleep(HEARTBEAT).await;
        // A link that nobody can open calls on any more ends with its last open one.
        let Some(openers) = link.upgrade() else { return };
        if calls.available_permits() == MAX_CALLS {
            continue;
        }
        let ping = async {
            let stream = open_stream(&openers).await?;
            Stream::start(stream, None, &Request::Ping).await?.finish().await
        };
        if !matches!(tokio::time::timeout(accept_timeout, ping).await, Ok(Ok(()))) {
            driving.abort();
        }
    }
}

/// How long a guest may take to accept; as long as it is alive where that comes with what a command says.
fn accept_timeout(request: &Request, usual: Duration) -> Option<Duration> {
    match request {
        Request::Exec(Exec { answer: AcceptWhen::Together, timeout, .. }) => {
            timeout.map(|timeout| {
                timeout.saturating_add(usual.saturating_sub(ACCEPTANCE)).saturating_add(LATE)
            })
        }
        _ => Some(usual),
    }
}

/// Refuses what has another form, or is not there, in the version that the guest speaks.
fn check_protocol(request: &Request, protocol: u32) -> Result<()> {
    let needed = match request {
        Request::Restore(_) | Request::Usage => USAGE_VERSION,
        Request::LetGo => CONDUIT_VERSION,
        Request::Terminal { .. } => TERMINAL_VERSION,
        Request::Lease(_) => LEASE_VERSION,
        Request::Connect { .. } => CONNECT_VERSION,
        Request::TreeToken => TREE_TOKEN_VERSION,
        _ => MIN_VERSION,
    };
    if protocol < needed {
        let message = "the session was started by an earlier version, which cannot do this";
        return Err(Error::new(ErrorKind::Unsupported, message)
            .with_hint("start it anew: stop the session and resume it, which keeps its files"));
    }
    Ok(())
}

#[async_trait]
impl Link for MuxLink {
    async fn open(&self, request: Request) -> Result<Stream> {
        check_protocol(&request, self.protocol)?;
        let calls = Arc::clone(&self.calls);
        let late = |_| agent_lost("the guest did not accept the request in time");
        let ready = async {
            let permit = calls
                .acquire_owned()
                .await
                .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            Ok((self.stream().await?, permit))
        };
        let (stream, permit) =
            tokio::time::timeout(self.accept_timeout, ready).await.map_err(late)??;
        let start = Stream::start(stream, Some(permit), &request);
        match accept_timeout(&request, self.accept_timeout) {
            Some(accept_timeout) => {
                tokio::time::timeout(accept_timeout, start).await.map_err(late)?
            }
            None => start.await,
        }
    }

    fn protocol(&self) -> u32 {
        self.protocol
    }

    fn side(&self) -> Option<&SideChannel> {
        self.side.as_ref()
    }
}

/// Owns the connection and moves its bytes.
struct Driver {
    connection: yamux::Connection<Compat<CorkedStream<Box<dyn Duplex>>>>,
    stream: CorkedStream<Box<dyn Duplex>>,
    waiting: mpsc::Receiver<Opener>,
    next: Option<Opener>,
    calls: Arc<Semaphore>,
}

/// Runs until the connection closes, or until nobody can open calls any more and the last open one
/// is over.
async fn drive(mut driver: Driver) {
    poll_fn(|context| driver.poll(context)).await;
}

impl Driver {
    /// Whether nobody can open calls any more, and none is open. Whoever ends a call says so before the
    /// stream of it is dropped, which wakes this.
    fn is_over(&self) -> bool {
        self.waiting.is_closed()
            && self.next.is_none()
            && self.calls.available_permits() == MAX_CALLS
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            // First, so that streams that were dropped do not count any more.
            match self.connection.poll_next_inbound(context) {
                // A guest opens no calls to the host. One that does is not ours.
                Poll::Ready(Some(Ok(_stream))) => return Poll::Ready(()),
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if self.next.is_none()
                && let Poll::Ready(Some(opener)) = self.waiting.poll_recv(context)
            {
                self.next = Some(opener);
            }
            if self.next.is_some()
                && let Poll::Ready(opened) = self.connection.poll_new_outbound(context)
                && let Some(opener) = self.next.take()
            {
                let opened = opened.map_err(|error| link_closed().with_source(error));
                // The caller may have given up waiting; its stream then closes again.
                drop(opener.send(opened));
                continue;
            }
            return match self.stream.poll_write_out(context) {
                _ if self.is_over() => Poll::Ready(()),
                Poll::Ready(Err(_)) => Poll::Ready(()),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            };
        }
    }
}
