#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod conduit;
mod corked_stream;
mod mux;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

pub use corked_stream::CorkedStream;
pub use mux::{MAX_STREAMS, mux_config};

/// One end of a pair of connected sockets, which hears of room to write only while it waits for some.
#[derive(Debug)]
pub struct LazyWriteStream {
    socket: OwnedFd,
    /// The same socket, of which the runtime only asks whether there is something to read.
    reader: pipe::Receiver,
    /// The same again, while there is no room to write.
    waiting: Option<pipe::Sender>,
}

impl LazyWriteStream {
    /// Takes a socket over. It will not block from here on, whoever else has it.
    ///
    /// # Errors
    ///
    /// Fails if the runtime cannot watch it.
    pub fn new(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        let socket = socket.into();
        rustix::io::ioctl_fionbio(&socket, true)?;
        let reader = pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?)?;
        Ok(Self { socket, reader, waiting: None })
    }
}

/// Waits until there is room to write to a socket that does not block.
///
/// # Errors
///
/// Fails if the runtime cannot watch the socket.
pub async fn writable(socket: impl AsFd) -> io::Result<()> {
    let same = socket.as_fd().try_clone_to_owned()?;
    pipe::Sender::from_owned_fd_unchecked(same)?.writable().await
}

impl AsFd for LazyWriteStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsyncRead for LazyWriteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(context, buffer)
    }
}

impl AsyncWrite for LazyWriteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            match rustix::net::send(&this.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            {
                Ok(sent) => {
                    this.waiting = None;
                    return Poll::Ready(Ok(sent));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Poll::Ready(Err(errno.into())),
            }
        }
        let sender = match &mut this.waiting {
            Some(sender) => sender,
            none => {
                let same = this.socket.try_clone()?;
                none.insert(pipe::Sender::from_owned_fd_unchecked(same)?)
            }
        };
        Pin::new(sender).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&self.socket, Shutdown::Write) {
            // Whoever was at the other end is gone already.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(errno) => Poll::Ready(Err(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (LazyWriteStream, LazyWriteStream) {
        let (near, far) = UnixStream::pair().unwrap();
        (LazyWriteStream::new(near).unwrap(), LazyWriteStream::new(far).unwrap())
    }

    #[tokio::test]
    async fn carries_more_than_there_is_room_for() {
        let (mut near, mut far) = pair();
        let sent: Vec<u8> = (0..8_000_000_u32).map(|number| (number % 251) as u8).collect();
        let expected = sent.clone();
        let writing = async move {
            near.write_all(&sent).await.unwrap();
            near.shutdown().await.unwrap();
            // What the other end says after that still arrives.
            assert_eq!(near.read_u8().await.unwrap(), 7);
        };
        let reading = async move {
            let mut received = Vec::new();
            far.read_to_end(&mut received).await.unwrap();
            assert!(received == expected, "{} bytes", received.len());
            far.write_u8(7).await.unwrap();
        };
        tokio::join!(writing, reading);
    }

    #[tokio::test]
    async fn says_when_there_is_room() {
        let (near, mut far) = pair();
        let full = [0; 65536];
        while rustix::net::send(&near, &full, SendFlags::DONTWAIT).is_ok() {}
        let waiting = writable(&near);
        tokio::pin!(waiting);
        let now = std::time::Duration::ZERO;
        assert!(tokio::time::timeout(now, &mut waiting).await.is_err());
        // As much as it takes until the kernel calls it room.
        let draining = async { while far.read(&mut [0; 65536]).await.unwrap() > 0 {} };
        tokio::select! {
            written = &mut waiting => written.unwrap(),
            () = draining => unreachable!("nobody closed it"),
        }
    }

    #[tokio::test]
    async fn fails_to_write_to_nobody() {
        let (mut near, far) = pair();
        drop(far);
        let error = near.write_all(b"hello").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(near.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
