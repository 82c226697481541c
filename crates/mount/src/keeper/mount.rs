//! One mount, from its making to its end, whatever becomes of its program.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bastide_proto::mounts::{KeeperSpec, MountRefusal, MountState, MountStatus, StoreMount};
use rustix::io::Errno;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::events::Notes;
use super::program::{Namespaces, Program};
use super::{Refusal, make_staging, now_ms};
use crate::attach::{AttachOutcome, AttachRequest, JOIN, MountTarget};
use crate::control::{Command, Report};
use crate::fs::{Counts, UNSTORED};
use crate::spec::{Cache, MountSpec, Start};

/// How often a program is started again within a while, and how long that while is.
const MAX_RESTARTS: u32 = 5;
const WHILE: Duration = Duration::from_secs(60);

/// How long to wait before the first restart; twice as long before each further one.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a program may take to store what was written: longer than it takes itself for that.
const LAST_STORES: Duration = Duration::from_secs(35);

/// How many files that could not be stored are named.
const MAX_NAMED: usize = 32;

/// How long a program may take to tell its counts.
const COUNTS: Duration = Duration::from_secs(2);

/// What is wanted of whoever looks after a mount.
enum MonitorRequest {
    /// The latest counts.
    Counts(oneshot::Sender<()>),
    /// The end, once nobody uses the mount any more or this much time has passed; and what was not stored.
    Finish(Duration, oneshot::Sender<Vec<String>>),
}

/// A mount.
pub(super) struct Mount {
    pub(super) order: StoreMount,
    since_ms: u64,
    shared: Rc<SharedStatus>,
    /// What it lies on, and in which folder.
    name: String,
    folder: OwnedFd,
    /// What was made for it, each with the folder it lies in.
    made: Vec<(String, OwnedFd)>,
    staging: PathBuf,
    requests: mpsc::Sender<MonitorRequest>,
}

/// What is known of a mount by whoever looks after it.
struct SharedStatus {
    state: Cell<MountState>,
    counts: Cell<Counts>,
}

impl Mount {
    /// Mounts, and has a program answer. If that fails, nothing is mounted.
    pub(super) async fn make(
        order: StoreMount,
        mut spec: MountSpec,
        staging: PathBuf,
        keeper: &KeeperSpec,
        namespaces: &Namespaces,
        names: Vec<String>,
    ) -> Result<Self, Refusal> {
        let name = names.last().cloned().unwrap_or_default();
        let mount_target = MountTarget {
            device: order.device.clone(),
            workspace: keeper.workspace.clone(),
            names,
            read_only: order.read_only,
            inside: keeper.inside,
            owner: order.owner,
        };
        let done = namespaces.run(&AttachRequest::Attach(mount_target), &[]).await;
        let (done, fds) = done.map_err(|error| io_refusal(&order, &error.to_string()))?;
        let (owner, made) = match done {
            AttachOutcome::Attached { owner, made } => (owner, made),
            AttachOutcome::Failed { step, errno } => return Err(refusal(&order, &step, errno)),
            AttachOutcome::Detached { .. } => return Err(io_refusal(&order, "it was taken away")),
        };
        (spec.uid, spec.gid) = (owner.uid, owner.gid);
        let mut fds = fds.into_iter();
        let (Some(device), Some(folder)) = (fds.next(), fds.next()) else {
            return Err(io_refusal(&order, "its device is missing"));
        };
        let made = made.into_iter().zip(fds).collect();
        let shared = Rc::new(SharedStatus {
            state: Cell::new(MountState::Mounted),
            counts: Cell::default(),
        });
        let (requests, wanted) = mpsc::channel(16);
        let notes = Notes::new(order.events.clone(), order.path.clone());
        let cache = Some(Cache { folder: order.cache.clone(), size: order.cache_size });
        let start = Start {
            cache,
            staging: staging.clone(),
            staging_size: keeper.disk,
            mounts: vec![spec],
        };
        let shared_too = Rc::clone(&shared);
        let since_ms = now_ms();
        let mount = Self { order, since_ms, shared, name, folder, made, staging, requests };
        let started = match make_staging(&start.staging) {
            Ok(()) => Program::serving(start.clone(), &device).await,
            Err(error) => Err(format!("{}: {error}", start.staging.display())),
        };
        match started {
            Ok(program) => {
                let unstored = RefCell::default();
                let restarts = Vec::new();
                let monitor =
                    MountMonitor { start, device, notes, shared: shared_too, restarts, unstored };
                tokio::task::spawn_local(monitor.run(program, wanted));
                Ok(mount)
            }
            Err(why) => {
                drop(std::fs::remove_dir_all(&start.staging));
                // Without its device the mount answers nobody; whoever looks at it is told so.
                drop(device);
                drop(mount.detach(keeper, namespaces).await);
                Err(io_refusal(&mount.order, &why))
            }
        }
    }

    pub(super) fn state(&self) -> MountState {
        self.shared.state.get()
    }

    /// Where its programs keep what is not stored.
    pub(super) fn staging(&self) -> &Path {
        &self.staging
    }

    /// Takes it out of the session's mounts. Whoever has something of it open goes on.
    pub(super) async fn detach(
        &self,
        keeper: &KeeperSpec,
        namespaces: &Namespaces,
    ) -> Result<(), Refusal> {
        let attach_request = AttachRequest::Detach {
            inside: keeper.inside,
            name: self.name.clone(),
            made: self.made.iter().map(|(name, _)| name.clone()).collect(),
        };
        let folders = self.made.iter().map(|(_, folder)| folder.as_fd());
        let fds: Vec<_> = [self.folder.as_fd()].into_iter().chain(folders).collect();
        match namespaces.run(&attach_request, &fds).await {
            Ok((AttachOutcome::Failed { step, errno }, _)) => {
                Err(refusal(&self.order, &step, errno))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(io_refusal(&self.order, &error.to_string())),
        }
    }

    /// Waits until nobody uses it any more, for so long, and ends its program once everything is stored. What could
    /// not be stored is told.
    pub(super) async fn finish(&self, deadline: Duration) -> Result<(), Refusal> {
        let (done, is_done) = oneshot::channel();
        // Whoever looks after it is gone if it is finished.
        if self.requests.send(MonitorRequest::Finish(deadline, done)).await.is_err() {
            return Ok(());
        }
        let unstored = is_done.await.unwrap_or_default();
        if unstored.is_empty() {
            return Ok(());
        }
        let (path, what) = (&self.order.path, named(&unstored));
        let message = format!("{path} is unmounted, but not all of it is in the store: {what}");
        Err(Refusal::new(MountRefusal::NotStored, message))
    }

    /// Removes what was made for it, once the session that it was mounted in is gone.
    pub(super) fn remove_made(&self) {
        for (name, folder) in self.made.iter().rev() {
            // Whatever somebody put there meanwhile stays.
            let _ = rustix::fs::unlinkat(folder, name.as_str(), rustix::fs::AtFlags::REMOVEDIR);
        }
    }

    pub(super) async fn status(&self) -> MountStatus {
        let (reply, replied) = oneshot::channel();
        if self.requests.send(MonitorRequest::Counts(reply)).await.is_ok() {
            // Without an answer the last counts will do.
            drop(tokio::time::timeout(COUNTS, replied).await);
        }
        let Counts { reads, writes, cache_hits, .. } = self.shared.counts.get();
        MountStatus {
            path: self.order.path.clone(),
            provider: self.order.provider.clone(),
            read_only: self.order.read_only,
            state: self.state(),
            since_ms: self.since_ms,
            reads,
            writes,
            cache_hits,
        }
    }
}

fn io_refusal(order: &StoreMount, why: &str) -> Refusal {
    Refusal::new(MountRefusal::Io, format!("cannot mount on {}: {why}", order.path))
}

/// What the system refused, with what to do about it.
fn refusal(order: &StoreMount, step: &str, errno: i32) -> Refusal {
    let (errno, device) = (Errno::from_raw_os_error(errno), order.device.display());
    let opened = step == format!("open {device}");
    let (why, hint) = match errno {
        Errno::PERM if step.starts_with(JOIN) => (
            MountRefusal::Unsupported,
            "this user may not mount there; run it as root of the machine",
        ),
        Errno::ACCESS | Errno::PERM if opened => (
            MountRefusal::Unsupported,
            "this user may not use FUSE; give it access to the device, or use another strategy",
        ),
        _ if opened => (
            MountRefusal::Unsupported,
            "FUSE is not to be had here; load the module `fuse`, or use another strategy",
        ),
        Errno::NOTEMPTY => {
            (MountRefusal::Conflict, "there is something in it; mount on an empty folder")
        }
        Errno::XDEV => (MountRefusal::Conflict, "another mount is there; choose another path"),
        Errno::LOOP | Errno::NOTDIR => {
            (MountRefusal::Conflict, "a link or file is in the way; mount on a folder")
        }
        _ => (MountRefusal::Io, "nothing was mounted"),
    };
    let message = format!("cannot mount on {}: cannot {step}: {errno}; {hint}", order.path);
    Refusal::new(why, message)
}

/// What it takes to look after a mount.
struct MountMonitor {
    start: Start,
    /// While this is open, the mount is there.
    device: OwnedFd,
    notes: Notes,
    shared: Rc<SharedStatus>,
    restarts: Vec<Instant>,
    /// What its programs said they could not store.
    unstored: RefCell<Vec<String>>,
}

/// What became of a program.
enum ProgramEnd {
    /// It died.
    Died,
    /// It was ended.
    Finished(Option<oneshot::Sender<Vec<String>>>),
}

impl MountMonitor {
    /// Sees to it that somebody answers, until the mount is finished.
    async fn run(mut self, program: Program, mut wanted: mpsc::Receiver<MonitorRequest>) {
        let mut program = program;
        let done = loop {
            let before = self.shared.counts.get();
            let after = self.monitor_program(&mut program, &mut wanted, before).await;
            match after {
                ProgramEnd::Finished(done) => break done,
                ProgramEnd::Died => match self.restart().await {
                    Some(another) => program = another,
                    None => {
                        self.shared.state.set(MountState::Lost);
                        // Every call fails from now on.
                        drop(self.device);
                        break lost(&mut wanted).await;
                    }
                },
            }
        };
        let mut unstored = self.unstored.take();
        if unstored.is_empty() {
            unstored.extend(kept_before(&self.start.staging));
        }
        // What is kept of it is there until the session is removed.
        if unstored.is_empty() {
            drop(std::fs::remove_dir_all(&self.start.staging));
        }
        if let Some(done) = done {
            // Whoever waited may be gone.
            drop(done.send(unstored));
        }
    }

    /// Hears a program, and tells it what is wanted, until its end.
    async fn monitor_program(
        &self,
        program: &mut Program,
        wanted: &mut mpsc::Receiver<MonitorRequest>,
        before: Counts,
    ) -> ProgramEnd {
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                report = program.socket.receive::<Report>() => match report {
                    Ok(Some((Report::Ended { .. }, _))) => {
                        // The session ended, or somebody else took the mount away.
                        self.stop(program).await;
                        self.shared.state.set(MountState::Lost);
                        // Whoever finishes it is told what was not stored.
                        return ProgramEnd::Finished(lost(wanted).await);
                    }
                    Ok(Some((report, _))) => self.take(report, before, &mut waiting),
                    Ok(None) | Err(_) => {
                        drop(program.process.kill().await);
                        return ProgramEnd::Died;
                    }
                },
                request = wanted.recv() => match request {
                    Some(MonitorRequest::Counts(reply)) => {
                        waiting.push(reply);
                        drop(program.socket.send(&Command::Counts, &[]).await);
                    }
                    Some(MonitorRequest::Finish(deadline, done)) => {
                        self.wait_for_end(program, deadline).await;
                        self.stop(program).await;
                        return ProgramEnd::Finished(Some(done));
                    }
                    None => {
                        self.stop(program).await;
                        return ProgramEnd::Finished(None);
                    }
                },
            }
        }
    }

    fn take(&self, report: Report, before: Counts, waiting: &mut Vec<oneshot::Sender<()>>) {
        match report {
            Report::Event(event) => self.notes.add(&event),
            Report::Unstored { path, kept, .. } => {
                let kept = kept.map(|kept| format!(" (what was written is in {})", kept.display()));
                let kept = kept.unwrap_or_else(|| " (it could not be kept either)".to_owned());
                self.unstored.borrow_mut().push(format!("{path:?}{kept}"));
            }
            Report::Counts { counts, .. } => {
                self.shared.counts.set(sum(before, counts));
                for reply in waiting.drain(..) {
                    // Whoever asked may be gone.
                    let _ = reply.send(());
                }
            }
            Report::Probed { .. }
            | Report::Ready
            | Report::Failed { .. }
            | Report::Ended { .. } => {}
        }
    }

    /// Hears a program until nobody uses the mount any more, for at most so long.
    async fn wait_for_end(&self, program: &Program, most: Duration) {
        let received = async {
            while let Ok(Some((report, _))) = program.socket.receive::<Report>().await {
                if matches!(report, Report::Ended { .. }) {
                    return;
                }
                self.take(report, Counts::default(), &mut Vec::new());
            }
        };
        // In time or not, it is stopped next.
        drop(tokio::time::timeout(most, received).await);
    }

    /// Has a program store what was written, and ends it.
    async fn stop(&self, program: &mut Program) {
        let stopped = async {
            program.socket.send(&Command::Stop { within_ms: None }, &[]).await?;
            while let Some((report, _)) = program.socket.receive::<Report>().await? {
                self.take(report, Counts::default(), &mut Vec::new());
            }
            program.process.wait().await
        };
        let ended = tokio::time::timeout(LAST_STORES, stopped).await;
        if !matches!(ended, Ok(Ok(_))) {
            drop(program.process.kill().await);
            let why = kept_before(&self.start.staging).unwrap_or_else(|| {
                "its program did not end in time; what was being written may be lost".to_owned()
            });
            self.unstored.borrow_mut().push(why);
        }
    }

    /// Another program for the same device; none if it does no good.
    async fn restart(&mut self) -> Option<Program> {
        self.shared.state.set(MountState::Restarting);
        for mount in &mut self.start.mounts {
            mount.resumed = true;
        }
        loop {
            let now = Instant::now();
            self.restarts.retain(|then| now.duration_since(*then) < WHILE);
            let tries = u32::try_from(self.restarts.len()).unwrap_or(u32::MAX);
            if tries >= MAX_RESTARTS {
                return None;
            }
            tokio::time::sleep(PAUSE * (1 << tries)).await;
            self.restarts.push(Instant::now());
            if let Ok(program) = Program::serving(self.start.clone(), &self.device).await {
                self.shared.state.set(MountState::Mounted);
                return Some(program);
            }
        }
    }
}

/// What was not stored, by name as far as people read that.
fn named(unstored: &[String]) -> String {
    let (named, more) = unstored.split_at(unstored.len().min(MAX_NAMED));
    match more.len() {
        0 => named.join(", "),
        more => format!("{}, and {more} more", named.join(", ")),
    }
}

/// What a program kept that died before it could say so.
fn kept_before(staging: &Path) -> Option<String> {
    let folder = staging.join(UNSTORED);
    let is_there = std::fs::read_dir(&folder).is_ok_and(|mut kept| kept.next().is_some());
    is_there.then(|| format!("what its program kept before it died is in {}", folder.display()))
}

/// Answers for a mount that is lost, until it is finished.
async fn lost(wanted: &mut mpsc::Receiver<MonitorRequest>) -> Option<oneshot::Sender<Vec<String>>> {
    loop {
        match wanted.recv().await {
            // What is known is all there is.
            Some(MonitorRequest::Counts(_)) => {}
            Some(MonitorRequest::Finish(_, done)) => return Some(done),
            None => return None,
        }
    }
}

/// The counts of a mount whose program is not its first.
fn sum(before: Counts, now: Counts) -> Counts {
    Counts {
        reads: before.reads + now.reads,
        writes: before.writes + now.writes,
        cache_hits: before.cache_hits + now.cache_hits,
        names_left_out: before.names_left_out.max(now.names_left_out),
        events_lost: before.events_lost + now.events_lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_many_it_does_not_name() {
        let all: Vec<_> = (0..MAX_NAMED + 2).map(|number| number.to_string()).collect();
        assert!(named(&all).ends_with(&format!("{}, and 2 more", MAX_NAMED - 1)));
        assert_eq!(named(&all[..2]), "0, 1");
    }

    #[test]
    fn says_what_a_program_kept_that_died() {
        let staging = tempfile::tempdir().unwrap();
        assert_eq!(kept_before(staging.path()), None);
        let folder = staging.path().join(UNSTORED);
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(kept_before(staging.path()), None);
        std::fs::write(folder.join("0-a"), "precious").unwrap();
        assert!(kept_before(staging.path()).is_some_and(|said| said.contains(UNSTORED)));
    }
}
