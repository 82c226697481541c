//! Carrying a plan out: a thread reads the archive, the link takes the pieces.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bastide_archive::{
    Action, ArchiveLimits, ArchiveScheme, EntryPath, Extraction, Obstacle, StepName, UnpackStep,
};
use bastide_proto::frame::MAX_DATA;
use bastide_proto::request::{PutObstacle, PutObstacleKind};
use bastide_proto::{End, Entry, EntryKind, PutItem, PutMessage};
use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use crate::link::fault::{agent_lost, refused};
use crate::link::{Incoming, Receiver, Sender, Stream, broken, decode};
use crate::session::files::SILENCE;
use crate::session::files::spool::Readable;
use crate::session::files::write::input;
use crate::{Error, ErrorKind, Result};

/// How many members may be on their way at once.
const ON_THE_WAY: usize = 1024;

/// How many pieces are read ahead.
const AHEAD: usize = 16;

/// An archive that is to be unpacked.
pub(super) struct Job {
    pub(super) data: Box<dyn Readable>,
    pub(super) scheme: ArchiveScheme,
    pub(super) limits: ArchiveLimits,
    /// What errors call the archive and its folder.
    pub(super) archive: String,
    pub(super) folder: String,
}

/// An archive whose members may be unpacked.
pub(super) struct Plan {
    chunks: mpsc::Receiver<ArchiveItem>,
}

/// The next piece of an archive.
enum ArchiveItem {
    Entry(Entry, StepName),
    Data(Bytes),
    FileEnd,
    /// The content of the file at hand cannot be read.
    Damaged(Error),
    /// The archive cannot be read any further.
    Failed(Error),
}

impl Job {
    /// Judges every member, and gets ready to read them again.
    pub(super) async fn check_members(self) -> Result<Plan> {
        let (sender, chunks) = mpsc::channel(AHEAD);
        let (judged, verdict) = oneshot::channel();
        // It ends when nobody takes its pieces any more.
        tokio::task::spawn_blocking(move || self.read(judged, &sender));
        let lost = |_| Error::new(ErrorKind::Internal, "the reader of an archive failed");
        verdict.await.map_err(lost)??;
        Ok(Plan { chunks })
    }

    fn read(self, judged: oneshot::Sender<Result<()>>, chunks: &mpsc::Sender<ArchiveItem>) {
        let Self { data, scheme, limits, archive, folder } = self;
        let mut plan = match Extraction::open(data, scheme, limits, &archive, &folder) {
            Ok(plan) => {
                if judged.send(Ok(())).is_err() {
                    return;
                }
                plan
            }
            Err(error) => return drop(judged.send(Err(error))),
        };
        loop {
            let sent = match plan.next_step() {
                Ok(Some(step)) => send_step(step, chunks),
                Ok(None) => return,
                Err(error) => {
                    drop(chunks.blocking_send(ArchiveItem::Failed(error)));
                    return;
                }
            };
            if !sent {
                return;
            }
        }
    }
}

/// Sends a step with its content; false if that was the last one.
fn send_step(mut step: UnpackStep<'_>, chunks: &mpsc::Sender<ArchiveItem>) -> bool {
    let kind = match &step.action {
        Action::Dir => EntryKind::Dir,
        Action::File { .. } => EntryKind::File,
        Action::Link { target } => EntryKind::Symlink { target: target.clone().into() },
    };
    let mut entry = Entry::new(step.path.as_bytes(), kind);
    if let Action::File { mode, .. } = &step.action {
        entry.mode = *mode;
    }
    let name = step.name();
    if chunks.blocking_send(ArchiveItem::Entry(entry, name.clone())).is_err() {
        return false;
    }
    let Action::File { content, .. } = &mut step.action else { return true };
    loop {
        let mut chunk = vec![0; MAX_DATA];
        match content.read(&mut chunk) {
            Ok(0) => return chunks.blocking_send(ArchiveItem::FileEnd).is_ok(),
            Ok(read) => {
                chunk.truncate(read);
                if chunks.blocking_send(ArchiveItem::Data(chunk.into())).is_err() {
                    return false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let error = name.refuse(Obstacle::Content(error));
                drop(chunks.blocking_send(ArchiveItem::Damaged(error)));
                return false;
            }
        }
    }
}

/// The members on their way, the oldest first, with their numbers.
#[derive(Debug, Default)]
struct InFlight {
    steps: Mutex<VecDeque<(u64, StepName)>>,
    fewer: Notify,
    /// When one of us last said something, if the guest has anything to do.
    last_message: Mutex<Option<Instant>>,
    /// Whether only the guest has still something to say.
    is_all_sent: AtomicBool,
}

impl Plan {
    /// Has the guest make everything.
    pub(super) async fn execute(mut self, stream: Stream) -> Result<()> {
        let Stream { mut to_guest, mut from_guest, .. } = stream;
        let in_flight = InFlight::default();
        let sending = send(&mut self.chunks, &mut to_guest, &in_flight);
        let listening = listen(&mut from_guest, &in_flight);
        tokio::pin!(sending, listening);
        // Whichever ends first: a guest that fails says why before it stops listening.
        tokio::select! {
            replied = &mut listening => replied,
            sent = &mut sending => match sent {
                Ok(SendEnd::All) => listening.await,
                // What was unpacked before stays; the error is the archive's.
                Ok(SendEnd::Until(error)) => listening.await.and(Err(error)),
                Err(lost) => match listening.await {
                    Err(error) if error.kind() != ErrorKind::AgentLost => Err(error),
                    _ => Err(lost),
                },
            },
        }
    }
}

/// How sending ended.
enum SendEnd {
    All,
    /// The archive could not be read any further.
    Until(Error),
}

async fn send(
    chunks: &mut mpsc::Receiver<ArchiveItem>,
    to_guest: &mut Sender,
    in_flight: &InFlight,
) -> Result<SendEnd> {
    let mut number = 0;
    loop {
        let chunk = match chunks.try_recv() {
            Ok(chunk) => Some(chunk),
            Err(_) => {
                // What waits for us must not wait with us.
                to_guest.flush().await?;
                chunks.recv().await
            }
        };
        match chunk {
            Some(ArchiveItem::Entry(entry, step)) => {
                in_flight.sent();
                while in_flight.lock().len() >= ON_THE_WAY {
                    to_guest.flush().await?;
                    let fewer = tokio::time::timeout(SILENCE, in_flight.fewer.notified()).await;
                    fewer.map_err(|_| agent_lost("the guest makes no more files"))?;
                }
                in_flight.lock().push_back((number, step));
                number += 1;
                to_guest.queue_item(&PutItem::Entry(entry)).await?;
            }
            Some(ArchiveItem::Data(data)) => {
                in_flight.sent();
                input(to_guest, data).await?;
            }
            Some(ArchiveItem::FileEnd) => to_guest.queue_input_end().await?,
            Some(ArchiveItem::Damaged(error)) => {
                in_flight.sent_all();
                to_guest.item(&PutItem::Abort).await?;
                return Ok(SendEnd::Until(error));
            }
            Some(ArchiveItem::Failed(error)) => {
                in_flight.sent_all();
                to_guest.input_end().await?;
                return Ok(SendEnd::Until(error));
            }
            None => {
                in_flight.sent_all();
                to_guest.input_end().await?;
                return Ok(SendEnd::All);
            }
        }
    }
}

async fn listen(from_guest: &mut Receiver, in_flight: &InFlight) -> Result<()> {
    let mut obstacle = None;
    loop {
        let Ok(incoming) = tokio::time::timeout(SILENCE, from_guest.next()).await else {
            // An archive may take long to read; a guest that has something to do may not.
            match in_flight.is_overdue() {
                true => return Err(agent_lost("the guest was silent while it made files")),
                false => continue,
            }
        };
        match incoming? {
            Incoming::Item(item) => match decode(&item)? {
                PutMessage::Progress { made } => {
                    in_flight.made(made);
                    in_flight.replied();
                }
                PutMessage::Obstacle(met) => obstacle = Some(met),
                _ => return Err(broken("an unknown word about a tree")),
            },
            Incoming::End(End::Done) => return Ok(()),
            Incoming::End(End::Failed(fault)) => {
                let refused_step = obstacle.and_then(|obstacle| in_flight.refuse(obstacle));
                return Err(refused_step.unwrap_or_else(|| refused(fault)));
            }
            _ => return Err(broken("not the end of a tree")),
        }
    }
}

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, StepName)>> {
        // Nothing that holds it can fail half-way.
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_message(&self) -> MutexGuard<'_, Option<Instant>> {
        self.last_message.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest has something to do.
    fn sent(&self) {
        *self.last_message() = Some(Instant::now());
    }

    /// The guest has only the rest to do.
    fn sent_all(&self) {
        self.is_all_sent.store(true, Ordering::Relaxed);
        self.sent();
    }

    /// The guest said something. It has still to do what was sent before we heard it.
    fn replied(&self) {
        let is_idle = self.lock().is_empty() && !self.is_all_sent.load(Ordering::Relaxed);
        *self.last_message() = (!is_idle).then(Instant::now);
    }

    fn is_overdue(&self) -> bool {
        self.last_message().is_some_and(|since| since.elapsed() >= SILENCE)
    }

    /// So many members are made.
    fn made(&self, count: u64) {
        let mut steps = self.lock();
        while steps.front().is_some_and(|(number, _)| *number < count) {
            steps.pop_front();
        }
        self.fewer.notify_one();
    }

    /// What an obstacle means for the member that met it.
    fn refuse(&self, obstacle: PutObstacle) -> Option<Error> {
        let steps = self.lock();
        let (_, step) = steps.iter().find(|(number, _)| *number == obstacle.entry)?;
        let os = io::Error::from_raw_os_error;
        Some(step.refuse(match obstacle.what {
            PutObstacleKind::Link { at, leaves } => {
                Obstacle::Link { at: EntryPath::new(&at), leaves }
            }
            PutObstacleKind::Folder => Obstacle::Folder,
            PutObstacleKind::Parents { errno } => Obstacle::Parents(os(errno)),
            PutObstacleKind::Place { errno } => Obstacle::Entry(os(errno)),
            _ => return None,
        }))
    }
}
