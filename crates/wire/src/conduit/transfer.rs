//! Carries a conduit over one stream.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::frames::{self, Frame, Frames};
use super::{ALIVE, End, SILENCE, STEP, Shared, State, count};

/// How much is read and written at once.
const ROOM: usize = 64 * 1024;

/// Why nothing is carried any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferEnd {
    /// The conduit has ended.
    Ended,
    /// The stream broke.
    Broken,
}

/// Carries a conduit over a stream, from where the other end has received; until either ends. `on_receive` is called whenever
/// something came.
pub(super) async fn transfer<S: AsyncRead + AsyncWrite>(
    shared: &Shared,
    stream: S,
    received: u64,
    on_receive: impl Fn(),
) -> TransferEnd {
    if shared.state().begin(received).is_err() {
        shared.finish(End::Lost);
        return TransferEnd::Ended;
    }
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        read = read(shared, reader, on_receive) => match read {
            Ok(end) => {
                shared.finish(end);
                TransferEnd::Ended
            }
            Err(_) => TransferEnd::Broken,
        },
        written = write(shared, writer, received) => match written {
            Ok(()) => {
                shared.finish(End::Goodbye);
                TransferEnd::Ended
            }
            Err(_) => TransferEnd::Broken,
        },
    }
}

/// Takes in what comes, until the end of the conduit.
async fn read(
    shared: &Shared,
    mut reader: impl AsyncRead + Unpin,
    on_receive: impl Fn(),
) -> io::Result<End> {
    let mut frames = Frames::default();
    let mut buffer = vec![0; ROOM];
    loop {
        let read = timeout(SILENCE, reader.read(&mut buffer)).await??;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        on_receive();
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let Ok((found, after)) = frames.next(rest) else { return Ok(End::Lost) };
            rest = after;
            let mut state = shared.state();
            let taken = match found {
                Some(Frame::Data(bytes)) => state.take(bytes),
                Some(Frame::Used(used)) => state.confirm(used),
                Some(Frame::Goodbye) => return Ok(End::Goodbye),
                None => Ok(()),
            };
            if taken.is_err() {
                return Ok(End::Lost);
            }
        }
    }
}

/// Writes what there is to say, until goodbye is said.
async fn write(
    shared: &Shared,
    mut writer: impl AsyncWrite + Unpin,
    received: u64,
) -> io::Result<()> {
    let mut sent = received;
    let mut frames = Vec::with_capacity(ROOM + 64);
    loop {
        frames.clear();
        let is_last = shared.state().gather(&mut frames, &mut sent);
        if frames.is_empty() {
            if timeout(ALIVE, shared.work.notified()).await.is_ok() {
                continue;
            }
            frames::alive(&mut frames);
        }
        writer.write_all(&frames).await?;
        writer.flush().await?;
        if is_last {
            return Ok(());
        }
    }
}

impl State {
    /// What is to be written next, for a stream on which so much was sent; whether it is the last.
    fn gather(&mut self, frames: &mut Vec<u8>, sent: &mut u64) -> bool {
        let used = self.used();
        if self.acknowledged.is_none_or(|acknowledged| used.saturating_sub(acknowledged) >= STEP) {
            self.acknowledged = Some(used);
            frames::used(frames, used);
        }
        // What the other end used it has received, also where this stream did not carry it.
        *sent = (*sent).max(self.confirmed);
        let begin = usize::try_from(*sent - self.confirmed).unwrap_or(usize::MAX);
        let end = self.outbox.len().min(begin.saturating_add(ROOM));
        let length = end.saturating_sub(begin);
        if let (1.., Ok(short)) = (length, u32::try_from(length)) {
            frames::data(frames, short);
            let (first, second) = self.outbox.as_slices();
            let split = first.len();
            frames
                .extend_from_slice(first.get(begin.min(split)..end.min(split)).unwrap_or_default());
            let of_second = begin.saturating_sub(split)..end.saturating_sub(split);
            frames.extend_from_slice(second.get(of_second).unwrap_or_default());
            *sent += count(length);
        }
        let is_last = self.closing && begin + length >= self.outbox.len();
        if is_last {
            frames::goodbye(frames);
        }
        is_last
    }
}
