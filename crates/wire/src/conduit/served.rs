//! The end of a conduit that streams come to.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::transfer::{TransferEnd, transfer};
use super::{Conduit, End, KEPT, Shared};

const ID: usize = 16;
const KEY: usize = 32;

/// What stands first in an answer: that the conduit is known, or not.
pub(super) const KNOWN: u8 = b'K';
const UNKNOWN: u8 = b'N';

/// The most conduits there are at once.
const MOST_CONDUITS: usize = 256;

type Id = [u8; ID];

/// What whoever brings a stream wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpenMode {
    New,
    Resume,
}

/// How a conduit is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handshake {
    id: Id,
    key: [u8; KEY],
}

impl Handshake {
    pub(super) fn new(name: [u8; ID + KEY]) -> Self {
        let mut made = Self { id: [0; ID], key: [0; KEY] };
        let (id, key) = name.split_at(ID);
        made.id.copy_from_slice(id);
        made.key.copy_from_slice(key);
        made
    }

    /// A word for what is wanted, id, key, and how much was received (8 bytes, little endian).
    pub(super) fn encode(&self, mode: OpenMode, received: u64) -> Vec<u8> {
        let word: &[u8] = if mode == OpenMode::New { b"N" } else { b"R" };
        [word, &self.id, &self.key, &received.to_le_bytes()].concat()
    }

    async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(Self, OpenMode, u64)> {
        let mode = match stream.read_u8().await? {
            b'N' => OpenMode::New,
            b'R' => OpenMode::Resume,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let mut name = [0; ID + KEY];
        stream.read_exact(&mut name).await?;
        Ok((Self::new(name), mode, stream.read_u64_le().await?))
    }

    /// Every byte is looked at, so that the time taken says nothing about how many were right.
    fn has_key(&self, key: &[u8; KEY]) -> bool {
        self.key.iter().zip(key).fold(0, |wrong, (a, b)| wrong | (a ^ b)) == 0
    }
}

async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    known: u8,
    received: u64,
) -> io::Result<()> {
    let mut bytes = vec![known];
    bytes.extend_from_slice(&received.to_le_bytes());
    stream.write_all(&bytes).await?;
    stream.flush().await
}

/// All conduits that come to this process, over streams of one kind.
#[derive(Debug)]
pub struct Conduits<S>(Arc<Mutex<HashMap<Id, KnownConduit<S>>>>);

#[derive(Debug)]
struct KnownConduit<S> {
    handshake: Handshake,
    /// Where streams go that it is to go on with, each with how much its other end has received.
    streams: mpsc::Sender<(S, u64)>,
}

impl<S> Default for Conduits<S> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Conduits<S> {
    /// Takes a stream that is to carry a conduit: a new one, which is returned, or one there is already. `on_receive` is called
    /// whenever something comes over a new one.
    ///
    /// # Errors
    ///
    /// Fails if the other end does not say which, or breaks off.
    pub async fn accept(
        &self,
        mut stream: S,
        on_receive: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Option<Conduit>> {
        let (handshake, mode, received) = Handshake::read(&mut stream).await?;
        if mode == OpenMode::Resume {
            let known = self.find(&handshake);
            if let Some(streams) = known {
                // Whoever carries it answers, once nothing more comes from the stream before.
                drop(streams.send((stream, received)).await);
            } else {
                answer(&mut stream, UNKNOWN, 0).await?;
            }
            return Ok(None);
        }
        let Some(streams) = self.add(&handshake) else {
            answer(&mut stream, UNKNOWN, 0).await?;
            return Ok(None);
        };
        let shared = Arc::new(Shared::default());
        let conduit = Conduit(Arc::clone(&shared));
        let registration = Registration { conduits: Arc::clone(&self.0), id: handshake.id };
        answer(&mut stream, KNOWN, 0).await?;
        tokio::spawn(async move {
            serve_conduit(&shared, stream, streams, on_receive).await;
            shared.finish(End::Lost);
            drop(registration);
        });
        Ok(Some(conduit))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.known().len()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Id, KnownConduit<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, handshake: &Handshake) -> Option<mpsc::Sender<(S, u64)>> {
        let known = self.known();
        let known = known.get(&handshake.id)?;
        known.handshake.has_key(&handshake.key).then(|| known.streams.clone())
    }

    fn add(&self, handshake: &Handshake) -> Option<mpsc::Receiver<(S, u64)>> {
        let mut known = self.known();
        if known.len() >= MOST_CONDUITS || known.contains_key(&handshake.id) {
            return None;
        }
        let (streams, waiting) = mpsc::channel(1);
        known.insert(handshake.id, KnownConduit { handshake: handshake.clone(), streams });
        Some(waiting)
    }
}

/// A conduit is known for as long as somebody carries it.
struct Registration<S> {
    conduits: Arc<Mutex<HashMap<Id, KnownConduit<S>>>>,
    id: Id,
}

impl<S> Drop for Registration<S> {
    fn drop(&mut self) {
        self.conduits.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Carries a conduit over one stream after another, until it has ended or no stream comes.
async fn serve_conduit<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Shared,
    first: S,
    mut streams: mpsc::Receiver<(S, u64)>,
    on_receive: impl Fn(),
) {
    let mut current = Some((first, 0));
    loop {
        let next = match current.take() {
            Some((stream, received)) => tokio::select! {
                transferred = transfer(shared, stream, received, &on_receive) => match transferred {
                    TransferEnd::Ended => return,
                    TransferEnd::Broken => None,
                },
                // Whoever brings another one knows that this one is broken.
                next = streams.recv() => next,
            },
            None => match timeout(KEPT, streams.recv()).await {
                Ok(Some(next)) => Some(next),
                Ok(None) | Err(_) => return,
            },
        };
        let Some((mut stream, received)) = next else { continue };
        let answered = timeout(super::ALIVE, answer(&mut stream, KNOWN, shared.received())).await;
        if matches!(answered, Ok(Ok(()))) {
            on_receive();
            current = Some((stream, received));
        }
    }
}
