//! A connection that outlives the streams it goes over.
//!
//! Both ends number the bytes they send, and keep what the other has not confirmed. When a stream breaks, the end that dials
//! brings another one, names the conduit and says up to where it has received; the other answers the same, and both go on
//! from there. So no byte is lost, and none comes twice.
//!
//! On a stream there are frames: data, how far the other end's bytes were used, a sign of life, and the orderly end.

mod dialled;
mod frames;
mod served;
mod transfer;

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

pub use dialled::dial;
pub use served::Conduits;

/// The most that is kept for the other end: what it has not used yet, and what may have been lost with a stream.
const MOST: usize = 4 << 20;

/// After how many bytes that were used the other end is told.
const STEP: u64 = 256 * 1024;

/// How much memory an end keeps that has nothing to say.
const IDLE: usize = 64 * 1024;

/// How long an end says nothing at most.
const ALIVE: Duration = Duration::from_secs(10);

/// How long it may seem to say nothing before its stream counts as broken.
const SILENCE: Duration = Duration::from_secs(35);

/// How long a conduit is kept without a stream.
pub const KEPT: Duration = Duration::from_secs(90);

/// One end of a conduit, for whoever speaks over it. Dropping it, or shutting it down, ends the conduit for both.
#[derive(Debug)]
pub struct Conduit(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes whoever writes to the stream.
    work: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What was said and not confirmed.
    outbox: VecDeque<u8>,
    /// The number of the first byte of that.
    confirmed: u64,
    /// What was received and not used.
    inbox: VecDeque<u8>,
    /// How many bytes were received in all.
    received: u64,
    /// Up to where the other end was told, on this stream.
    acknowledged: Option<u64>,
    /// Whoever speaks over this end has no more to say and to hear.
    closing: bool,
    end: Option<End>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// How a conduit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// In good order.
    Goodbye,
    /// Without a stream for too long, or the other end does not know it any more.
    Lost,
}

/// The other end does not keep to the rules.
#[derive(Debug)]
struct Violation;

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        state.wake();
        self.work.notify_one();
    }

    fn is_closing(&self) -> bool {
        self.state().closing
    }

    fn received(&self) -> u64 {
        self.state().received
    }
}

impl State {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }

    fn used(&self) -> u64 {
        self.received.saturating_sub(count(self.inbox.len()))
    }

    /// Begins a stream; the other end has received so much.
    fn begin(&mut self, received: u64) -> Result<(), Violation> {
        self.acknowledged = None;
        let most = self.confirmed.saturating_add(count(self.outbox.len()));
        if (self.confirmed..=most).contains(&received) { Ok(()) } else { Err(Violation) }
    }

    /// Takes bytes in.
    fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        // Nobody needs them any more.
        if self.closing {
            self.received = self.received.saturating_add(count(bytes.len()));
            return Ok(());
        }
        if self.inbox.len().saturating_add(bytes.len()) > MOST {
            return Err(Violation);
        }
        self.inbox.extend(bytes);
        self.received = self.received.saturating_add(count(bytes.len()));
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
        Ok(())
    }

    /// Forgets what the other end has used.
    fn confirm(&mut self, used: u64) -> Result<(), Violation> {
        // What another stream said before may come later.
        let forgotten =
            usize::try_from(used.saturating_sub(self.confirmed)).map_err(|_| Violation)?;
        if forgotten > self.outbox.len() {
            return Err(Violation);
        }
        self.outbox.drain(..forgotten);
        self.confirmed = self.confirmed.max(used);
        if self.outbox.is_empty() {
            self.outbox.shrink_to(IDLE);
        }
        if forgotten > 0
            && let Some(waker) = self.writer.take()
        {
            waker.wake();
        }
        Ok(())
    }
}

fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl AsyncRead for Conduit {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.inbox.is_empty() {
            return match state.end {
                Some(End::Goodbye) => Poll::Ready(Ok(())),
                Some(End::Lost) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                None => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        }
        while buffer.remaining() > 0 {
            let (first, _) = state.inbox.as_slices();
            let taken = first.len().min(buffer.remaining());
            if taken == 0 {
                break;
            }
            buffer.put_slice(first.get(..taken).unwrap_or_default());
            state.inbox.drain(..taken);
        }
        if state.inbox.is_empty() {
            state.inbox.shrink_to(IDLE);
        }
        let is_due = state
            .acknowledged
            .is_none_or(|acknowledged| state.used().saturating_sub(acknowledged) >= STEP);
        drop(state);
        if is_due {
            self.0.work.notify_one();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Conduit {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.0.state();
        if state.end.is_some() || state.closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = MOST.saturating_sub(state.outbox.len());
        if room == 0 && !bytes.is_empty() {
            state.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        state.outbox.extend(taken);
        drop(state);
        self.0.work.notify_one();
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whoever carries it writes as soon as it can.
        Poll::Ready(Ok(()))
    }

    /// Waits until the other end was told, or cannot be.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.end.is_some() {
            return Poll::Ready(Ok(()));
        }
        state.closing = true;
        state.writer = Some(context.waker().clone());
        drop(state);
        self.0.work.notify_one();
        Poll::Pending
    }
}

impl Drop for Conduit {
    fn drop(&mut self) {
        self.0.state().closing = true;
        self.0.work.notify_one();
    }
}

#[cfg(test)]
mod tests;
