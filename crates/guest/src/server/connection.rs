//! One connection of a host: the handshake, then many calls at once.

use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bastide_proto::container::WARDEN_CHANNEL;
use bastide_proto::hello::{CONDUIT, HELLO_BYTES, SIDE_CHANNEL, check_hello, welcome_at};
use bastide_wire::{CorkedStream, LazyWriteStream, mux_config};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Connection, Mode};

use super::side_channel::SideChannel;
use super::{Guest, call, ports};

/// How long a host may take to greet.
const GREETING: Duration = Duration::from_secs(5);

/// Serves one connection until it closes. A host that does not greet properly gets no word.
pub(super) async fn serve(guest: Arc<Guest>, mut stream: UnixStream) {
    let greeted = tokio::time::timeout(GREETING, greet(&guest, &mut stream)).await;
    let (side, version) = match greeted {
        Ok(Ok(Greeting::Host(side, version))) => (side, version),
        Ok(Ok(Greeting::Warden(port_channel))) => {
            return serve_warden(guest, stream, port_channel).await;
        }
        Ok(Ok(Greeting::Conduit)) => return serve_conduit(guest, stream).await,
        Ok(Ok(Greeting::Unauthenticated) | Err(_)) | Err(_) => return,
    };
    let Ok(stream) = stream.into_std().and_then(LazyWriteStream::new) else { return };
    let stream = Received { stream, guest: Arc::clone(&guest) };
    serve_link(guest, stream, side, version).await;
}

/// Serves a link that goes over one stream after another, of which this is one.
async fn serve_conduit(guest: Arc<Guest>, stream: UnixStream) {
    let hearing = Arc::clone(&guest);
    let accepted = guest.conduits.accept(stream, move || hearing.lease.host_seen());
    let Ok(Ok(Some(mut conduit))) = tokio::time::timeout(GREETING, accepted).await else { return };
    let greet = async {
        let mut hello = [0; HELLO_BYTES];
        conduit.read_exact(&mut hello).await?;
        let version = check_hello(&hello, &guest.token).map_err(io::Error::other)?;
        conduit.write_all(&welcome_at(version)).await?;
        io::Result::Ok(version)
    };
    let Ok(Ok(version)) = tokio::time::timeout(GREETING, greet).await else { return };
    serve_link(guest, conduit, None, version).await;
}

/// Serves calls over a stream whose host has greeted, until it closes.
async fn serve_link<T: AsyncRead + AsyncWrite + Unpin>(
    guest: Arc<Guest>,
    stream: T,
    side: Option<SideChannel>,
    version: u32,
) {
    let side = side.map(Arc::new);
    let stream = CorkedStream::new(stream);
    let mut connection = Connection::new(stream.clone().compat(), mux_config(), Mode::Server);
    // Calls that wait for something else than the host learn here that the host is gone.
    let (_connected, gone) = watch::channel(());
    let mut next = |context: &mut Context<'_>| match connection.poll_next_inbound(context) {
        Poll::Pending => match stream.poll_write_out(context) {
            Poll::Ready(Err(_)) => Poll::Ready(None),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        },
        next @ Poll::Ready(_) => next,
    };
    let mut calls = 0_u64;
    while let Some(Ok(stream)) = poll_fn(&mut next).await {
        calls += 1;
        // Calls that are over free their streams when they run; too many of both would end the link.
        if calls.is_multiple_of(16) {
            tokio::task::yield_now().await;
        }
        let call = call::serve(Arc::clone(&guest), side.clone(), version, stream, gone.clone());
        tokio::spawn(call);
    }
}

/// What a greeting tells.
enum Greeting {
    /// Somebody we serve, perhaps with a side channel, in that version of the protocol.
    Host(Option<SideChannel>, u32),
    /// Somebody we serve, who brings a stream for a link that may be there already.
    Conduit,
    /// A warden from outside, and where it asks for ports.
    Warden(OwnedFd),
    /// Somebody else.
    Unauthenticated,
}

/// Answers a warden that came by a connection, which it watches over this process by, until it is gone.
async fn serve_warden(guest: Arc<Guest>, mut stream: UnixStream, port_channel: OwnedFd) {
    tokio::select! {
        () = ports::serve(guest, port_channel) => {}
        _ = stream.read_u8() => {}
    }
}

async fn greet(guest: &Guest, stream: &mut UnixStream) -> io::Result<Greeting> {
    let mut hello = [0; HELLO_BYTES];
    let (first, socket) = first_byte(stream).await?;
    // A host that has a side channel sends its end ahead of everything else.
    let is_ahead = [SIDE_CHANNEL, WARDEN_CHANNEL, CONDUIT].contains(&first);
    let have = usize::from(!is_ahead);
    if !is_ahead {
        hello[0] = first;
    }
    stream.read_exact(&mut hello[have..]).await?;
    let Ok(version) = check_hello(&hello, &guest.token) else {
        return Ok(Greeting::Unauthenticated);
    };
    stream.write_all(&welcome_at(version)).await?;
    if first == CONDUIT {
        return Ok(Greeting::Conduit);
    }
    if first == WARDEN_CHANNEL {
        return Ok(socket.map_or(Greeting::Unauthenticated, Greeting::Warden));
    }
    Ok(Greeting::Host(socket.map(SideChannel::new).transpose()?, version))
}

/// A stream of a host: what comes over it keeps the session from ending by itself.
struct Received<T> {
    stream: T,
    guest: Arc<Guest>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Received<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.guest.lease.host_seen();
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Received<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The first byte of a connection, and the descriptor that came with it.
async fn first_byte(stream: &UnixStream) -> io::Result<(u8, Option<OwnedFd>)> {
    stream
        .async_io(Interest::READABLE, || {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut slices = [IoSliceMut::new(&mut byte)];
            let received = recvmsg(stream, &mut slices, &mut ancillary, flags)?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut socket = None;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                    socket = descriptors.next();
                }
            }
            Ok((byte[0], socket))
        })
        .await
}
