//! One call: a request in, its stream out.

use std::sync::Arc;

use bastide_proto::files::FileOp;
use bastide_proto::frame::{ROOM, Tag};
use bastide_proto::{
    Accepted, End, Fault, FaultKind, Frame, FrameCodec, FrameError, Request, TREE_TOKEN_VERSION,
    USAGE_VERSION,
};
use bytes::Bytes;
use futures::{FutureExt, SinkExt, StreamExt};
use serde::Serialize;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use super::side_channel::SideChannel;
use super::{Guest, exec, files, freeze, lease, ports, provision, put, tree, unchanged, usage};

type Wire = Compat<yamux::Stream>;

/// What the host sends during a call.
pub(super) struct Inbox(FramedRead<ReadHalf<Wire>, FrameCodec>);

/// What the guest sends during a call, and the version of the protocol that the host speaks.
pub(super) struct Outbox(FramedWrite<WriteHalf<Wire>, FrameCodec>, u32);

/// The host is gone, or broke the protocol; either way nobody listens any more.
#[derive(Debug)]
pub(super) struct Disconnected;

impl From<FrameError> for Disconnected {
    fn from(_: FrameError) -> Self {
        Self
    }
}

impl Inbox {
    /// The next frame.
    pub(super) async fn next(&mut self) -> Result<Frame, Disconnected> {
        match self.0.next().await {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(_)) | None => Err(Disconnected),
        }
    }
}

impl Inbox {
    /// The next frame, if it is here already.
    pub(super) fn next_now(&mut self) -> Result<Option<Frame>, Disconnected> {
        match self.0.next().now_or_never() {
            Some(Some(Ok(frame))) => Ok(Some(frame)),
            Some(Some(Err(_)) | None) => Err(Disconnected),
            None => Ok(None),
        }
    }
}

impl Outbox {
    /// Whether the host understands what commands used.
    pub(super) fn takes_usage(&self) -> bool {
        self.1 >= USAGE_VERSION
    }

    /// Whether the host understands what trees are known by.
    pub(super) fn takes_tree_tokens(&self) -> bool {
        self.1 >= TREE_TOKEN_VERSION
    }

    /// Tells the host that the call is accepted.
    pub(super) async fn accept(&mut self, accepted: Accepted) -> Result<(), Disconnected> {
        self.message(Tag::Accepted, &accepted).await
    }

    /// As [`accept`](Self::accept), together with what is sent next.
    pub(super) async fn queue_acceptance(
        &mut self,
        accepted: Accepted,
    ) -> Result<(), Disconnected> {
        self.queue(Tag::Accepted, &accepted).await
    }

    /// Sends data.
    pub(super) async fn data(&mut self, tag: Tag, data: Bytes) -> Result<(), Disconnected> {
        Ok(self.0.send(Frame::new(tag, data)).await?)
    }

    /// Sends one typed message of the call.
    pub(super) async fn item<T: Serialize>(&mut self, item: &T) -> Result<(), Disconnected> {
        self.message(Tag::Item, item).await
    }

    /// Puts data where the next message takes it along.
    pub(super) async fn queue_data(&mut self, tag: Tag, data: Bytes) -> Result<(), Disconnected> {
        Ok(self.0.feed(Frame::new(tag, data)).await?)
    }

    /// Puts a typed message where the next one takes it along.
    pub(super) async fn queue_item<T: Serialize>(&mut self, item: &T) -> Result<(), Disconnected> {
        self.queue(Tag::Item, item).await
    }

    /// Tells the host how the call ended.
    pub(super) async fn end(&mut self, end: &End) -> Result<(), Disconnected> {
        self.message(Tag::End, end).await
    }

    async fn queue<T: Serialize>(&mut self, tag: Tag, message: &T) -> Result<(), Disconnected> {
        let body = bastide_proto::encode(message).map_err(|_| Disconnected)?;
        Ok(self.0.feed(Frame::new(tag, body)).await?)
    }

    async fn message<T: Serialize>(&mut self, tag: Tag, message: &T) -> Result<(), Disconnected> {
        let body = bastide_proto::encode(message).map_err(|_| Disconnected)?;
        Ok(self.0.send(Frame::new(tag, body)).await?)
    }
}

/// Serves one call. An error here means that the host is gone; there is nobody to tell.
pub(super) async fn serve(
    guest: Arc<Guest>,
    side: Option<Arc<SideChannel>>,
    version: u32,
    stream: yamux::Stream,
    mut connected: watch::Receiver<()>,
) {
    let (read, write) = tokio::io::split(stream.compat());
    let mut inbox = Inbox(FramedRead::with_capacity(read, FrameCodec, ROOM));
    let mut outbox = Outbox(FramedWrite::new(write, FrameCodec), version);
    let answered = tokio::select! {
        answered = answer(&guest, side.as_deref(), &mut inbox, &mut outbox) => answered,
        // Nothing is ever sent; this is the connection's end.
        _ = connected.changed() => Err(Disconnected),
    };
    if answered.is_err() {
        return;
    }
    // Closing, not dropping: a dropped stream is reset, and a reset may overtake the last frames.
    drop(outbox.0.close().await);
}

async fn answer(
    guest: &Arc<Guest>,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Disconnected> {
    let frame = inbox.next().await?;
    let request = match frame.tag {
        Tag::Request => bastide_proto::decode::<Request>(&frame.body).ok(),
        _ => None,
    };
    // Whoever only looks at what goes on keeps nothing going.
    let is_look = matches!(
        &request,
        None | Some(
            Request::Ping
                | Request::Processes
                | Request::Usage
                | Request::LetGo
                | Request::Lease(_)
        )
    );
    let _going_on = (!is_look).then(|| guest.activity.begin());
    let _writer = request.as_ref().filter(|it| may_write(it)).map(|_| guest.unchanged.writer());
    let refused = match request {
        Some(Request::Exec(exec)) => exec::run(guest, exec, inbox, outbox).await,
        Some(Request::Attach(attach)) => exec::attach(guest, attach, inbox, outbox).await,
        Some(Request::Signal(signal)) => exec::signal(guest, signal, outbox).await,
        Some(Request::Cancel { process }) => exec::cancel(guest, process, outbox).await,
        Some(Request::Detach { process }) => exec::detach(guest, process, outbox).await,
        Some(Request::Processes) => exec::list(guest, outbox).await,
        Some(Request::Put(put)) => put::run(guest, &put, inbox, outbox).await,
        Some(Request::Files(request)) => files::run(guest, request, side, inbox, outbox).await,
        Some(Request::Accounts(wanted)) => provision::run(guest, wanted, outbox).await,
        Some(Request::Scan(scan)) => tree::scan(guest, &scan, side, inbox, outbox).await,
        Some(Request::Restore(asked)) => tree::restore(guest, &asked, side, inbox, outbox).await,
        Some(Request::Usage) => usage::send_usage(guest, outbox).await,
        Some(Request::Freeze { end }) => freeze::run(guest, end, inbox, outbox).await,
        Some(Request::Terminal { process }) => exec::terminal(guest, process, outbox).await,
        Some(Request::LetGo) => {
            guest.lease.let_go();
            outbox.accept(Accepted::default()).await?;
            return outbox.end(&End::Done).await;
        }
        Some(Request::Lease(update)) => lease::change(guest, &update, outbox).await,
        Some(Request::Connect { port }) => ports::forward(port, inbox, outbox).await,
        Some(Request::TreeToken) => unchanged::run(guest, outbox).await,
        Some(Request::Ping) => {
            outbox.accept(Accepted::default()).await?;
            return outbox.end(&End::Done).await;
        }
        _ => Err(Refusal::Fault(Fault::new(FaultKind::Invalid, "the request is malformed"))),
    };
    match refused {
        Ok(()) => Ok(()),
        Err(Refusal::Fault(fault)) => outbox.message(Tag::Refused, &fault).await,
        Err(Refusal::Disconnected) => Err(Disconnected),
    }
}

/// Whether a call itself may change files. Commands do when they are started, not before.
fn may_write(request: &Request) -> bool {
    match request {
        Request::Put(_) | Request::Restore(_) | Request::Accounts(_) => true,
        Request::Files(request) => !matches!(
            request.op,
            FileOp::Read(_)
                | FileOp::List { .. }
                | FileOp::Stat { .. }
                | FileOp::SameFile { .. }
                | FileOp::Glob(_)
                | FileOp::Watch { .. }
        ),
        _ => false,
    }
}

/// Why a call was not accepted, or ended without a word.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Refused before anything happened.
    Fault(Fault),
    /// The host is gone.
    Disconnected,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Disconnected> for Refusal {
    fn from(_: Disconnected) -> Self {
        Self::Disconnected
    }
}

/// Turns a system error into a fault that names what was being done.
pub(super) fn fault(what: &str, error: &std::io::Error) -> Fault {
    use std::io::ErrorKind as E;
    let kind = match error.kind() {
        E::NotFound => FaultKind::NotFound,
        E::PermissionDenied => FaultKind::Denied,
        E::InvalidInput | E::IsADirectory | E::NotADirectory => FaultKind::Invalid,
        _ => FaultKind::Io,
    };
    Fault { kind, message: format!("{what}: {error}"), errno: error.raw_os_error(), path: None }
}
