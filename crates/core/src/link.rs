//! The connection to a guest: one request in, one stream out.

pub mod conduit;
pub(crate) mod fault;
mod idle;
pub mod lease;
mod mux;
mod side_channel;

use std::fmt;

use async_trait::async_trait;
use bastide_proto::frame::{ROOM, Tag};
use bastide_proto::{Accepted, Control, End, Frame, FrameCodec, Request};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt};

use crate::link::fault::{agent_lost, refused};
use crate::{Error, ErrorKind, Result};

pub use idle::IdleLink;
pub(crate) use idle::link_of;
pub use mux::MuxLink;
pub(crate) use mux::{LATE, link_closed};
pub(crate) use side_channel::{Access, ReceivedFile, passable_device};
pub use side_channel::{FdTicket, SideChannel};

/// A connection to the guest of one session.
///
/// The one method takes every request as data, so a layer that audits, limits or forwards wraps
/// `open` and needs no change when the guest gets a new request. Callers rarely see this trait:
/// [`Session`](crate::Session) has a typed method for each request.
#[async_trait]
pub trait Link: fmt::Debug + Send + Sync {
    /// Sends `request` and returns its stream once the guest accepts it.
    async fn open(&self, request: Request) -> Result<Stream>;

    /// The way for descriptors beside the link, where there is one.
    fn side(&self) -> Option<&SideChannel> {
        None
    }

    /// The version of the protocol that the guest understands.
    fn protocol(&self) -> u32 {
        bastide_proto::VERSION
    }
}

type Wire = Compat<yamux::Stream>;

/// Both directions of one call. Dropping it before its end cancels the call: the guest ends the
/// work inside.
pub struct Stream {
    /// The guest's answer when it accepted the call.
    pub accepted: Accepted,
    /// What is sent to the guest.
    pub to_guest: Sender,
    /// What is received from the guest.
    pub from_guest: Receiver,
}

/// The sending direction of a call.
pub struct Sender(FramedWrite<WriteHalf<Wire>, FrameCodec>);

/// The receiving direction of a call.
pub struct Receiver {
    /// Counts this call among the open ones of its link; it goes before the stream does.
    _permit: Option<OwnedSemaphorePermit>,
    frames: FramedRead<ReadHalf<Wire>, FrameCodec>,
}

/// A message from the guest during a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Incoming {
    /// Standard output, or the content of a file.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// A typed message of the call.
    Item(Bytes),
    /// The call is over.
    End(End),
}

impl Stream {
    /// Sends a request on a fresh stream and waits for the guest's word.
    async fn start(
        stream: yamux::Stream,
        permit: Option<OwnedSemaphorePermit>,
        request: &Request,
    ) -> Result<Self> {
        let (read, write) = tokio::io::split(stream.compat());
        let mut to_guest = Sender(FramedWrite::new(write, FrameCodec));
        let frames = FramedRead::with_capacity(read, FrameCodec, ROOM);
        let mut from_guest = Receiver { frames, _permit: permit };
        to_guest.message(Tag::Request, request).await?;
        let answer = from_guest.next_frame().await?;
        match answer.tag {
            Tag::Accepted => Ok(Self { accepted: decode(&answer.body)?, to_guest, from_guest }),
            Tag::Refused => Err(refused(decode(&answer.body)?)),
            tag => Err(broken(&format!("a {tag:?} frame where an answer is due"))),
        }
    }
}

impl Stream {
    /// Waits for the end of a call that returns nothing.
    ///
    /// # Errors
    ///
    /// The error that the guest reports, or [`ErrorKind::AgentLost`].
    pub async fn finish(mut self) -> Result<()> {
        match self.from_guest.next().await? {
            Incoming::End(End::Done) => Ok(()),
            Incoming::End(End::Failed(fault)) => Err(refused(fault)),
            _ => Err(broken("not the end of the call")),
        }
    }
}

impl Sender {
    /// Sends bytes for the current command or file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn input(&mut self, data: Bytes) -> Result<()> {
        self.frame(Frame::new(Tag::Input, data)).await
    }

    /// Buffers bytes for the current file, to be sent with the next message, and sends the buffer
    /// once it is large enough.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn queue_input(&mut self, data: Bytes) -> Result<()> {
        let fed = self.0.feed(Frame::new(Tag::Input, data)).await;
        fed.map_err(|error| link_closed().with_source(error))
    }

    /// Buffers a typed message, to be sent with the next one.
    ///
    /// # Errors
    ///
    /// As [`item`](Self::item).
    pub async fn queue_item<T: Serialize + Sync>(&mut self, item: &T) -> Result<()> {
        let frame = Self::encode(Tag::Item, item)?;
        let fed = self.0.feed(frame).await;
        fed.map_err(|error| link_closed().with_source(error))
    }

    /// Sends what is buffered.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn flush(&mut self) -> Result<()> {
        let flushed = SinkExt::<Frame>::flush(&mut self.0).await;
        flushed.map_err(|error| link_closed().with_source(error))
    }

    /// Buffers the end of the current file, to be sent with the next message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn queue_input_end(&mut self) -> Result<()> {
        let fed = self.0.feed(Frame::new(Tag::InputEnd, Bytes::new())).await;
        fed.map_err(|error| link_closed().with_source(error))
    }

    /// Sends EOF: no more input follows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn input_end(&mut self) -> Result<()> {
        self.frame(Frame::new(Tag::InputEnd, Bytes::new())).await
    }

    /// Sends a control message for the current process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn control(&mut self, control: &Control) -> Result<()> {
        self.message(Tag::Control, control).await
    }

    /// Sends one typed message.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone.
    pub async fn item<T: Serialize + Sync>(&mut self, item: &T) -> Result<()> {
        self.message(Tag::Item, item).await
    }

    async fn message<T: Serialize>(&mut self, tag: Tag, message: &T) -> Result<()> {
        let frame = Self::encode(tag, message)?;
        self.frame(frame).await
    }

    fn encode<T: Serialize>(tag: Tag, message: &T) -> Result<Frame> {
        let body = bastide_proto::encode(message)
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        if body.len() > tag.max_body() {
            let most = tag.max_body();
            let message = format!("the request is {} bytes long; at most {most} fit", body.len());
            return Err(Error::new(ErrorKind::LimitExceeded, message)
                .with_hint("pass large arguments or environments in a file"));
        }
        Ok(Frame::new(tag, body))
    }

    async fn frame(&mut self, frame: Frame) -> Result<()> {
        self.0.send(frame).await.map_err(|error| link_closed().with_source(error))
    }
}

impl Receiver {
    /// The next message. After [`Incoming::End`] there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AgentLost`] if the guest is gone or breaks the protocol.
    pub async fn next(&mut self) -> Result<Incoming> {
        let frame = self.next_frame().await?;
        match frame.tag {
            Tag::Stdout => Ok(Incoming::Stdout(frame.body)),
            Tag::Stderr => Ok(Incoming::Stderr(frame.body)),
            Tag::Item => Ok(Incoming::Item(frame.body)),
            Tag::End => Ok(Incoming::End(decode(&frame.body)?)),
            tag => Err(broken(&format!("a {tag:?} frame in the middle of a call"))),
        }
    }

    async fn next_frame(&mut self) -> Result<Frame> {
        match self.frames.next().await {
            Some(Ok(frame)) => Ok(frame),
            Some(Err(error)) => Err(broken(&error.to_string())),
            None => Err(agent_lost("the link closed in the middle of a call")),
        }
    }
}

/// Reads a typed message of a guest.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    bastide_proto::decode(body).map_err(|error| broken(&error.to_string()))
}

/// The guest said something no guest of ours says: it is not one, or not any more.
pub(crate) fn broken(what: &str) -> Error {
    agent_lost(&format!("the guest broke the protocol: {what}"))
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("accepted", &self.accepted).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
