//! Whether there is room for another session, and the queue of those who wait for it.
//!
//! What a session takes is reserved by its folder: whoever makes or starts one holds the folder's lock from before the
//! room is counted again, and the kernel lets go of that whatever becomes of them. So nothing has to be given back,
//! and nothing is lost by a kill. Who has to wait takes a ticket, a file in `queue` of the home that is locked for as long
//! as somebody waits. Tickets are served by their numbers; one that nobody holds any more is passed over.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::boot::ResourceLimits;
use tokio::time::Instant;

use crate::backend::SessionId;
use crate::host::make_private;
use crate::host::process_identity::has_keeper;
use crate::state::{HomeConfig, State};
use crate::{Condition, Error, ErrorKind, Result};

/// Locked while room is counted and taken. In it: the last number that was on a ticket.
const LOCK: &str = "admission.lock";

/// The folder of tickets.
const QUEUE: &str = "queue";

/// How long whoever counts is waited for.
const BUSY: Duration = Duration::from_secs(30);

/// How long to wait before looking again: at the lock, and at the room or the queue.
const AGAIN: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(20);

/// The longest wait between two looks of somebody far back in the queue.
const MOST_LOOK: Duration = Duration::from_millis(500);

/// The right to take room, for as long as this is held.
#[derive(Debug)]
pub(super) struct Admitted {
    _lock: Option<File>,
    _ticket: Option<Ticket>,
}

/// The longest that is waited for room.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Waits until there is room for a session with these limits, and its turn; limits that it must have are put on it. What it
/// takes has to be reserved before this is dropped.
pub(super) async fn admit(
    state: &State,
    limits: &mut ResourceLimits,
    wait: Option<Duration>,
) -> Result<Admitted> {
    let mut turn = AdmissionRequest::new(state, wait)?;
    loop {
        match turn.look(None, limits).await? {
            Some(admitted) => return Ok(admitted),
            None => turn.pause().await,
        }
    }
}

/// Somebody who wants room, for as long as this is held.
#[derive(Debug)]
pub(super) struct AdmissionRequest<'a> {
    state: &'a State,
    config: HomeConfig,
    queue: Queue<'a>,
    ticket: Option<Ticket>,
    wait: Option<Duration>,
    deadline: Instant,
    ahead: usize,
}

impl<'a> AdmissionRequest<'a> {
    pub(super) fn new(state: &'a State, wait: Option<Duration>) -> Result<Self> {
        let config = HomeConfig::load(state.home())?;
        let deadline = Instant::now() + wait.unwrap_or_default().min(LONGEST_WAIT);
        let queue = Queue { home: state.home(), folder: state.home().join(QUEUE) };
        Ok(Self { state, config, queue, ticket: None, wait, deadline, ahead: 0 })
    }

    /// Looks once whether there is room and nobody came before; whoever has to wait gets a place in the queue. Fails when
    /// the time to wait is over.
    pub(super) async fn look(
        &mut self,
        own: Option<&SessionId>,
        limits: &mut ResourceLimits,
    ) -> Result<Option<Admitted>> {
        let Self { state, config, queue, ticket, .. } = self;
        if !config.is_limited() {
            return Ok(Some(Admitted { _lock: None, _ticket: None }));
        }
        bound(config, limits)?;
        self.ahead = queue.ahead_of(ticket.as_ref())?;
        let is_over = Instant::now() >= self.deadline;
        if self.ahead == 0 {
            let lock = queue.lock().await?;
            // Somebody may have come while the lock was waited for.
            if queue.ahead_of(ticket.as_ref())? == 0 && has_room(state, own, config, limits)? {
                return Ok(Some(Admitted { _lock: Some(lock), _ticket: ticket.take() }));
            }
            if ticket.is_none() && !is_over {
                *ticket = Some(queue.draw(&lock)?);
            }
        } else if ticket.is_none() && !is_over {
            let lock = queue.lock().await?;
            *ticket = Some(queue.draw(&lock)?);
        }
        if is_over {
            let waiting = queue.ahead_of(None)?;
            return Err(no_room(state, config, waiting, ticket.is_some(), self.wait)?);
        }
        Ok(None)
    }

    /// Waits until it is worth looking again: the longer, the more came before.
    pub(super) async fn pause(&self) {
        let looks = u32::try_from(self.ahead + 1).unwrap_or(u32::MAX);
        let pause = LOOK.saturating_mul(looks).min(MOST_LOOK);
        tokio::time::sleep_until(self.deadline.min(Instant::now() + pause)).await;
    }
}

/// Puts limits on a session that asks for none, where there is a budget, and refuses what never fits.
fn bound(config: &HomeConfig, limits: &mut ResourceLimits) -> Result<()> {
    let never = |what: &str, asked: u64, most: u64, unit: &str| {
        let message = format!(
            "a session with {asked} {unit} of {what} never fits into {most}, all that this home allows"
        );
        Err(Error::new(ErrorKind::LimitExceeded, message)
            .with_hint("ask for less, or change `config.toml` in the home"))
    };
    if let Some(most) = config.memory {
        let asked = *limits.memory.get_or_insert(config.memory_of_others().min(most));
        if asked > most {
            return never("memory", asked, most, "bytes");
        }
    }
    if let Some(most) = config.cpus {
        let asked = *limits.cpu_millis.get_or_insert(config.cpus_of_others().min(most));
        if asked > most {
            return never("processors", asked, most, "thousandths");
        }
    }
    if config.max_sessions == Some(0) {
        let message = "this home allows no sessions";
        return Err(Error::new(ErrorKind::LimitExceeded, message)
            .with_hint("change `max_sessions` of `config.toml` in the home"));
    }
    Ok(())
}

/// What sessions take that somebody keeps alive, or is about to.
#[derive(Debug, Default, Clone, Copy)]
struct UsedRoom {
    sessions: usize,
    memory: u64,
    cpu_millis: u64,
}

fn used_room(state: &State, but: Option<&SessionId>, config: &HomeConfig) -> Result<UsedRoom> {
    let mut used_room = UsedRoom::default();
    for id in state.ids()? {
        if Some(&id) == but || !is_kept(state, &id) {
            continue;
        }
        used_room.sessions += 1;
        if config.memory.is_none() && config.cpus.is_none() {
            continue;
        }
        // One that nobody can read takes what anybody does.
        let limits = state.record(&id).ok().flatten().map(|record| record.spec.limits);
        let limits = limits.unwrap_or_default();
        let memory = limits.memory.unwrap_or_else(|| config.memory_of_others());
        used_room.memory = used_room.memory.saturating_add(memory);
        let cpu_millis = limits.cpu_millis.unwrap_or_else(|| config.cpus_of_others());
        used_room.cpu_millis = used_room.cpu_millis.saturating_add(cpu_millis);
    }
    Ok(used_room)
}

/// Whether anybody keeps a session running: a warden, or whatever other process of this host does.
fn is_kept(state: &State, id: &SessionId) -> bool {
    state.liveness(id).is_kept() || has_keeper(&state.path_of(id))
}

fn has_room(
    state: &State,
    own: Option<&SessionId>,
    config: &HomeConfig,
    limits: &ResourceLimits,
) -> Result<bool> {
    let used_room = used_room(state, own, config)?;
    let fits = |used_room: u64, more: Option<u64>, most: Option<u64>| {
        most.is_none_or(|most| used_room.saturating_add(more.unwrap_or(0)) <= most)
    };
    Ok(config.max_sessions.is_none_or(|most| used_room.sessions < most)
        && fits(used_room.memory, limits.memory, config.memory)
        && fits(used_room.cpu_millis, limits.cpu_millis, config.cpus))
}

fn no_room(
    state: &State,
    config: &HomeConfig,
    waiting: usize,
    was_queued: bool,
    wait: Option<Duration>,
) -> Result<Error> {
    let used_room = used_room(state, None, config)?;
    let others = waiting.saturating_sub(usize::from(was_queued));
    let time_limit = match wait {
        Some(wait) if !wait.is_zero() => format!(" after {:.1} s", wait.as_secs_f64()),
        _ => String::new(),
    };
    let message = format!(
        "there is no room for another session{time_limit}: {} run, and {others} more wait for room",
        used_room.sessions
    );
    Ok(Error::new(ErrorKind::LimitExceeded, message)
        .with_retryable(true)
        .with_context("running", used_room.sessions)
        .with_context("waiting", others)
        .with_context("memory", used_room.memory)
        .with_context("cpu_millis", used_room.cpu_millis)
        .with_condition(Condition::NoRoom))
}

/// Those who wait for room in one home.
#[derive(Debug)]
struct Queue<'a> {
    home: &'a Path,
    folder: PathBuf,
}

/// A place in the queue, for as long as this is held.
#[derive(Debug)]
struct Ticket {
    path: PathBuf,
    number: u64,
    _lock: File,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // One that stays is passed over, and removed by whoever does so.
        drop(fs::remove_file(&self.path));
    }
}

impl Queue<'_> {
    fn failed(&self, error: &io::Error) -> Error {
        let message = format!("cannot wait for room in {}: {error}", self.home.display());
        Error::new(ErrorKind::Io, message)
    }

    /// Takes the lock under which room is counted and taken.
    async fn lock(&self) -> Result<File> {
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        let lock = options.open(self.home.join(LOCK)).map_err(|error| self.failed(&error))?;
        let deadline = Instant::now() + BUSY;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(lock),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(self.failed(&io::ErrorKind::TimedOut.into()));
                }
                Err(TryLockError::Error(error)) => return Err(self.failed(&error)),
            }
        }
    }

    /// Takes a ticket. Its number was never another's: whoever finds one that nobody holds removes it by its number.
    fn draw(&self, lock: &File) -> Result<Ticket> {
        let draw = || {
            make_private(&self.folder)?;
            let waiting = self.numbers()?.last().copied().unwrap_or(0);
            let mut drawn = [0; 8];
            let drawn = match lock.read_exact_at(&mut drawn, 0) {
                Ok(()) => u64::from_le_bytes(drawn),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                Err(error) => return Err(error),
            };
            let number = waiting.max(drawn).checked_add(1).ok_or(io::ErrorKind::InvalidData)?;
            lock.write_all_at(&number.to_le_bytes(), 0)?;
            self.remove_unnamed()?;
            let path = self.folder.join(format!("{number:020}"));
            // It has its name once it is locked: nobody takes it for one that was left behind.
            let unnamed = path.with_extension(std::process::id().to_string());
            let mut options = File::options();
            let lock =
                options.write(true).create(true).truncate(true).mode(0o600).open(&unnamed)?;
            lock.try_lock().map_err(io::Error::from)?;
            fs::rename(&unnamed, &path)?;
            Ok(Ticket { path, number, _lock: lock })
        };
        draw().map_err(|error: io::Error| self.failed(&error))
    }

    /// Removes what those left who were killed before their ticket had its name: only one draws at a time.
    fn remove_unnamed(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if number_of(&entry.file_name()).is_none() {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// How many wait who came before this one, or at all. Tickets that nobody holds any more are removed.
    fn ahead_of(&self, own: Option<&Ticket>) -> Result<usize> {
        let mut ahead = 0;
        for number in self.numbers().map_err(|error| self.failed(&error))? {
            if own.is_some_and(|own| number >= own.number) {
                break;
            }
            let path = self.folder.join(format!("{number:020}"));
            match File::open(&path) {
                Ok(ticket) => match ticket.try_lock_shared() {
                    Ok(()) => drop(fs::remove_file(&path)),
                    Err(_) => ahead += 1,
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(ahead)
    }

    /// The numbers of all tickets, in order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut numbers = Vec::new();
        for entry in entries {
            numbers.extend(number_of(&entry?.file_name()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

/// The number of a ticket, by the name of its file.
fn number_of(name: &OsStr) -> Option<u64> {
    name.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn removes_what_was_left_of_a_ticket_by_whoever_was_killed() {
        let home = tempfile::tempdir().unwrap();
        let queue = Queue { home: home.path(), folder: home.path().join(QUEUE) };
        let lock = queue.lock().await.unwrap();
        let first = queue.draw(&lock).unwrap();
        let left = first.path.with_extension("4711");
        fs::write(&left, "").unwrap();
        let second = queue.draw(&lock).unwrap();
        assert!(!left.exists(), "it stays for ever");
        assert_eq!(queue.ahead_of(Some(&second)).unwrap(), 1, "who waits is not touched");
    }

    #[tokio::test]
    async fn serves_tickets_in_order_and_passes_over_those_nobody_holds() {
        let home = tempfile::tempdir().unwrap();
        let queue = Queue { home: home.path(), folder: home.path().join(QUEUE) };
        assert_eq!(queue.ahead_of(None).unwrap(), 0);
        let lock = queue.lock().await.unwrap();
        let draw = || queue.draw(&lock).unwrap();
        let (first, second, third) = (draw(), draw(), draw());
        assert_eq!(queue.ahead_of(Some(&first)).unwrap(), 0);
        assert_eq!(queue.ahead_of(Some(&third)).unwrap(), 2);
        assert_eq!(queue.ahead_of(None).unwrap(), 3);
        // As a process that is killed: its file stays, and its lock does not.
        let path = second.path.clone();
        drop(second);
        fs::write(&path, "").unwrap();
        assert_eq!(queue.ahead_of(Some(&third)).unwrap(), 1);
        assert!(!path.exists());
        drop(first);
        assert_eq!(queue.ahead_of(Some(&third)).unwrap(), 0);
        let later = draw();
        assert!(later.number > third.number, "nobody who comes later gets an earlier number");
        let (last, path) = (later.number, later.path.clone());
        drop((third, later));
        assert!(draw().number > last, "nor one that somebody had, who may still be looked for");
        assert!(!path.exists());
    }

    #[test]
    fn bounds_those_who_ask_for_nothing_and_refuses_what_never_fits() {
        let config = HomeConfig { memory: Some(1 << 30), ..HomeConfig::default() };
        let mut limits = ResourceLimits::default();
        bound(&config, &mut limits).unwrap();
        assert_eq!((limits.memory, limits.cpu_millis), (Some(512 << 20), None));
        limits.memory = Some(2 << 30);
        assert_eq!(bound(&config, &mut limits).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}
