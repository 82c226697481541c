//! A connection that is written to once for everything there is to say.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, BufStream, ReadBuf};

/// How much is gathered before it is written in any case, and read at a time.
const ROOM: usize = 32 * 1024;

/// A connection that keeps what is written to it until somebody [writes it out](Self::poll_write_out): those
/// who flush after every word would wake the other end for each.
///
/// Whoever drives the connection has one, and a clone of it flushes.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// use std::future::poll_fn;
///
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// let (near, mut far) = tokio::io::duplex(64);
/// let near = bastide_wire::CorkedStream::new(near);
/// let mut writer = near.clone();
/// for word in [b"one ", b"two "] {
///     writer.write_all(word).await?;
///     writer.flush().await?;
/// }
/// poll_fn(|context| near.poll_write_out(context)).await?;
/// let mut heard = [0; 64];
/// let read = far.read(&mut heard).await?;
/// assert_eq!(&heard[..read], b"one two ");
/// # std::io::Result::Ok(())
/// # })?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct CorkedStream<T>(Arc<Mutex<BufStream<T>>>);

impl<T> Clone for CorkedStream<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> CorkedStream<T> {
    /// Takes a connection over.
    pub fn new(connection: T) -> Self {
        Self(Arc::new(Mutex::new(BufStream::with_capacity(ROOM, ROOM, connection))))
    }

    /// Writes what was gathered.
    ///
    /// # Errors
    ///
    /// As writing to the connection.
    pub fn poll_write_out(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection()).poll_flush(context)
    }

    fn connection(&self) -> MutexGuard<'_, BufStream<T>> {
        // One that failed half-way says so itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for CorkedStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection()).poll_read(context, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CorkedStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.connection()).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection()).poll_shutdown(context)
    }
}
