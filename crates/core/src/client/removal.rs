//! Ending the machine of a session on purpose, and removing a session: what `Client` and `Session` share.
//!
//! Each stage is on the disk before the act it announces. So whoever is killed on the way leaves a session
//! that says what was meant to become of it, and the same command again finishes it.

use std::io;
use std::path::{Path, PathBuf};

use tokio::time::Instant;

use crate::backend::{Backend, Machine, SessionId};
use crate::state::{
    AGAIN, BUSY, ClaimAttempt, Origin, Record, SessionFolder, Stage, State, Transition,
    TransitionAttempt, is_owned_root, remove_unnoted_root, reopen, write_tombstone,
};
use crate::{Condition, Error, ErrorKind, Result};

/// What became of a session that was to be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// It is stopped, or was started again since by somebody else.
    Yes,
    /// It is gone.
    Missing,
}

/// That somebody else is changing a session for too long.
pub(super) fn busy(id: &SessionId) -> Error {
    let message = format!("somebody else is still busy with session {id}");
    Error::new(ErrorKind::Timeout, message).with_retryable(true).with_hint("try again later")
}

/// That a session is on its way out.
pub(super) fn being_removed(id: &SessionId) -> Error {
    Error::new(ErrorKind::Conflict, format!("session {id} is being removed"))
        .with_condition(Condition::SessionBeingRemoved(id.to_string()))
}

/// That the making of a session was interrupted.
pub(super) fn never_made(id: &SessionId) -> Error {
    let message = format!("session {id} was never made to its end");
    Error::new(ErrorKind::Conflict, message)
        .with_condition(Condition::SessionNeverMade(id.to_string()))
}

/// Takes hold of a session whose machine has ended, once the last of those who kept it alive is gone. The
/// caller is the only one who may start it again.
pub(super) async fn hold(
    state: &State,
    id: &SessionId,
    _transition: &Transition,
) -> Result<Option<SessionFolder>> {
    let deadline = Instant::now() + BUSY;
    loop {
        match state.claim(id)? {
            ClaimAttempt::Ours(folder) => return Ok(Some(folder)),
            ClaimAttempt::Missing => return Ok(None),
            ClaimAttempt::Kept if Instant::now() < deadline => tokio::time::sleep(AGAIN).await,
            ClaimAttempt::Kept => return Err(busy(id)),
        }
    }
}

/// Puts on record that a session is being saved whose files end with its machine. From then on nobody begins to use it, for
/// what they write would be lost. `None` where files outlive machines, or the session is not up any more.
pub(crate) async fn begin_saving(
    backend: &dyn Backend,
    state: &State,
    machine: &Machine,
) -> Result<Option<Transition>> {
    if backend.keeps_files() {
        return Ok(None);
    }
    let id = &machine.id;
    let transition = match state.lock_transition(id).await? {
        TransitionAttempt::Ours(transition) => transition,
        TransitionAttempt::Missing => return Ok(None),
        TransitionAttempt::Taken => return Err(busy(id)),
    };
    let Some(mut record) = state.record(id)? else { return Ok(None) };
    let is_its = record.machine.as_ref().is_some_and(|known| known.state == machine.state);
    if !is_its || !matches!(record.stage, Stage::Running | Stage::Saving) {
        return Ok(None);
    }
    record.stage = Stage::Saving;
    state.write(&record, &transition)?;
    Ok(Some(transition))
}

/// Puts on record that a session goes on that could not be saved, or whose saving was interrupted.
pub(crate) fn go_on(state: &State, id: &SessionId, transition: &Transition) -> Result<()> {
    match state.record(id)? {
        Some(mut record) if record.stage == Stage::Saving => {
            record.stage = Stage::Running;
            state.write(&record, transition)
        }
        _ => Ok(()),
    }
}

/// Ends a machine and puts on record that its session is stopped. Whoever [saved](begin_saving) it has the turn already.
pub(crate) async fn shut_down(
    backend: &dyn Backend,
    state: &State,
    machine: &Machine,
    turn: Option<Transition>,
) -> Result<Stopped> {
    let id = &machine.id;
    let attempt = match turn {
        Some(transition) => TransitionAttempt::Ours(transition),
        None => state.lock_transition(id).await?,
    };
    let transition = match attempt {
        TransitionAttempt::Ours(transition) => transition,
        TransitionAttempt::Missing => {
            backend.stop(machine).await?;
            return Ok(Stopped::Missing);
        }
        TransitionAttempt::Taken => return Err(busy(id)),
    };
    let Some(mut record) = state.record(id)? else { return Ok(Stopped::Missing) };
    let is_its = record.machine.as_ref().is_some_and(|known| known.state == machine.state);
    match record.stage {
        Stage::Starting => return Err(never_made(id)),
        Stage::Stopped => return Ok(Stopped::Yes),
        Stage::Running | Stage::Saving | Stage::Stopping if !is_its => {
            backend.stop(machine).await?;
            return Ok(Stopped::Yes);
        }
        Stage::Running | Stage::Saving | Stage::Stopping => {}
    }
    // Whoever resumes it needs what is on record of it beside that it can be.
    state.sync_remembered(id)?;
    record.stage = Stage::Stopping;
    record.tied = false;
    state.write(&record, &transition)?;
    backend.stop(machine).await?;
    let Some(_folder) = hold(state, id, &transition).await? else { return Ok(Stopped::Missing) };
    record.stage = Stage::Stopped;
    state.write(&record, &transition)?;
    Ok(Stopped::Yes)
}

/// A removal that was announced: from here on it can only be finished.
#[derive(Debug)]
pub(crate) struct Removal<'a> {
    backend: &'a dyn Backend,
    state: &'a State,
    id: &'a SessionId,
    path: PathBuf,
    /// Missing where whoever has it does not answer; the session goes all the same.
    transition: Option<Transition>,
    record: Option<Record>,
    is_tied: bool,
    /// Whether somebody else was faster, and nothing is left to do. What has the name now is another one.
    is_gone: bool,
}

impl<'a> Removal<'a> {
    /// Announces that a session is removed, and waits until nobody else changes it; `None` if there is
    /// no such session.
    pub(crate) async fn announce(
        backend: &'a dyn Backend,
        state: &'a State,
        id: &'a SessionId,
    ) -> Result<Option<Self>> {
        let path = state.path_of(id);
        reopen(&path);
        let before = state.record(id).ok().flatten();
        // Before anything is announced: whoever asks the wrong backend has not asked for anything.
        if let Some(record) = &before {
            check_backend(backend, id, &record.backend)?;
        }
        let is_tied = before.is_some_and(|record| record.tied);
        let marked = write_tombstone(&path, is_tied);
        if !marked.map_err(|error| not_removed(id, &path, &error))? {
            return Ok(None);
        }
        let (transition, is_gone) = match state.lock_transition(id).await? {
            TransitionAttempt::Ours(transition) => (Some(transition), false),
            TransitionAttempt::Taken => (None, false),
            TransitionAttempt::Missing => (None, true),
        };
        // One that cannot be read is removed by its folder: somebody asked for this very session.
        let record = state.record(id).ok().flatten().filter(|_| !is_gone);
        Ok(Some(Self { backend, state, id, path, transition, record, is_tied, is_gone }))
    }

    /// A removal that somebody announced and did not finish, by whoever has the turn now: nothing of another session
    /// that has the name since is touched.
    pub(super) fn of_announced(
        backend: &'a dyn Backend,
        state: &'a State,
        id: &'a SessionId,
        transition: Transition,
    ) -> Result<Self> {
        let record = state.record(id).ok().flatten();
        // Looked at after the record, which may have been another's.
        let is_gone = !transition.is_in_place()?;
        let is_tied = record.as_ref().is_some_and(|record| record.tied);
        let (path, transition) = (state.path_of(id), Some(transition));
        Ok(Self { backend, state, id, path, transition, record, is_tied, is_gone })
    }

    /// A removal of a session that the caller holds, which is announced now.
    pub(super) fn of_held(
        backend: &'a dyn Backend,
        state: &'a State,
        folder: &'a SessionFolder,
        transition: Transition,
        record: Option<Record>,
    ) -> Result<Self> {
        let (id, path) = (folder.id(), folder.path().to_owned());
        write_tombstone(&path, false).map_err(|error| not_removed(id, &path, &error))?;
        let transition = Some(transition);
        let (is_tied, is_gone) = (false, false);
        Ok(Self { backend, state, id, path, transition, record, is_tied, is_gone })
    }

    /// The machine on record.
    pub(crate) fn machine(&self) -> Option<&Machine> {
        self.record.as_ref()?.machine.as_ref()
    }

    /// Ends everything of the session and removes it.
    pub(crate) async fn execute(self) -> Result<()> {
        if self.is_gone {
            return Ok(());
        }
        if let Some(root) = self.owned_root()? {
            remove_owned_root(self.backend, self.machine(), &root).await?;
        }
        if let Some(root) = self.record.as_ref().and_then(|record| record.owned_root.as_ref()) {
            let removed = remove_unnoted_root(&self.path, root);
            removed.map_err(|error| not_removed(self.id, &self.path, &error))?;
        }
        // While the folder is there: whoever has the name next has points of their own. Where that fails, the next
        // collection of garbage finds them.
        drop(self.state.store().and_then(|store| store.forget_points(self.id.as_str())));
        match self.machine() {
            Some(machine) => self.backend.destroy(machine).await?,
            None => self.backend.discard(&self.path).await?,
        }
        // What a machine on record did not lead to goes too, unless it is another session by now.
        if let Some(transition) = &self.transition
            && transition.is_in_place()?
        {
            self.backend.discard(&self.path).await?;
        }
        // Whoever removes it puts that on record.
        self.state.forget_deletion(self.id);
        // Only sessions that outlive their owners are in the index.
        if !self.is_tied {
            self.state.forget(self.id);
        }
        Ok(())
    }

    /// The folder elsewhere that was made for this session, if it is really this session's: that of a
    /// copy belongs to the original, and what was there before the session is somebody else's.
    fn owned_root(&self) -> Result<Option<PathBuf>> {
        let Some(record) = &self.record else { return Ok(None) };
        let Some(root) = record.owned_root.clone() else { return Ok(None) };
        let is_own = match &record.machine {
            Some(machine) => self.backend.is_own(machine)?,
            None => Origin::of(&self.path).is_ok_and(|origin| origin == Origin::Here),
        };
        let noted = is_owned_root(&self.path, &root);
        let noted = noted.map_err(|error| not_removed(self.id, &self.path, &error))?;
        // A version that did not note it had made it by the time a machine was on record.
        let is_made = noted.unwrap_or(record.machine.is_some());
        Ok((is_own && is_made).then_some(root))
    }
}

/// Removes the folder elsewhere that was made for a session, once nothing runs in it. The session's own folder goes after it:
/// whoever finishes a removal that was interrupted knows of both by the record there.
pub(super) async fn remove_owned_root(
    backend: &dyn Backend,
    machine: Option<&Machine>,
    root: &Path,
) -> Result<()> {
    if let Some(machine) = machine {
        backend.stop(machine).await?;
    }
    backend.remove_tree(root).await
}

fn not_removed(id: &SessionId, path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot remove session {id}: {error}");
    Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string())
}

/// Finishes removals of this session that somebody else began. Says whether there were any.
pub(super) async fn finish_removal(
    backend: &dyn Backend,
    state: &State,
    id: &SessionId,
) -> Result<bool> {
    let remains = state.remains(Some(id))?;
    for path in &remains {
        backend.discard(path).await?;
    }
    Ok(!remains.is_empty())
}

pub(super) fn check_backend(backend: &dyn Backend, id: &SessionId, on: &str) -> Result<()> {
    let own = backend.name();
    if on == own {
        return Ok(());
    }
    let message = format!("session {id} is on the backend `{on}`, not on `{own}`");
    Err(Error::new(ErrorKind::InvalidInput, message))
}
