//! Points of a session, and going back to them.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::Session;
use crate::events::Finished;
use crate::journal::{CommandPoint, JournalContext, TerminalLines};
use crate::snapshot::store::SnapshotInfo;
use crate::{
    CheckpointReport, Command, Condition, DiffReport, Error, ErrorKind, MergeReport, ProcessId,
    Result, TransitionReport,
};

/// Points of a session's workspace: making them, comparing them, and going back to them.
#[derive(Debug, Clone, Copy)]
pub struct SessionJournal<'s>(&'s Session);

impl SessionJournal<'_> {
    /// Makes a point of the workspace as it is now, under a name if one is given. Processes are kept
    /// from running meanwhile; they go on afterwards. Files are kept, processes are not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a name no point can have, [`ErrorKind::Conflict`] for one that another
    /// point has; others if the workspace cannot be read or the point cannot be written: the points
    /// that were there before are still there then.
    pub async fn checkpoint(self, name: Option<&str>) -> Result<CheckpointReport> {
        let scope = self.0.extension("checkpoint", || json!({"name": name}));
        let journal = JournalContext::of(self.0)?;
        scope.record_as_one(Box::pin(journal.checkpoint(name)), |_| Finished::done()).await
    }

    /// What is different between two points: `A..B`, `A` for what is there now, nothing for what an
    /// [`undo`](Self::undo) would take back. With a path, only of what is there and below it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] for a point that is unknown, or was removed because there were too many;
    /// [`ErrorKind::InvalidInput`] if the later one comes first.
    pub async fn diff(self, range: Option<&str>, path: Option<&str>) -> Result<DiffReport> {
        let scope = self.0.extension("diff", || json!({"range": range, "path": path}));
        let journal = JournalContext::of(self.0)?;
        scope.record_as_one(Box::pin(journal.diff(range, path)), |_| Finished::done()).await
    }

    /// Makes the workspace what it was before the last `steps` commands; without a journal of
    /// commands, what it was at the last checkpoint that it differs from. Processes are ended first.
    /// In a folder of the caller's only what commands changed is taken back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there are not so many; [`ErrorKind::Conflict`] if a terminal is open in the
    /// session, or if somebody else changed the same files. Nothing changes then.
    pub async fn undo(self, steps: usize) -> Result<TransitionReport> {
        let scope = self.0.extension("undo", || json!({"steps": steps}));
        let work = Box::pin(async {
            if steps == 0 {
                let message = "nothing is undone by no steps";
                return Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_hint("say how many: 1 is the last one"));
            }
            self.0.refuse_live_terminal().await?;
            let live = self.0.list_processes().await?;
            let live = live.iter().filter(|process| process.exit.is_none()).count();
            JournalContext::of(self.0)?.undo(steps, live).await
        });
        scope.record_as_one(work, |_| Finished::done()).await
    }

    /// Takes the last [`undo`](Self::undo) back.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if nothing was undone; [`ErrorKind::Conflict`] as there, and if the workspace
    /// changed since.
    pub async fn redo(self) -> Result<TransitionReport> {
        let scope = self.0.extension("redo", || json!({}));
        let work = Box::pin(async {
            self.0.refuse_live_terminal().await?;
            JournalContext::of(self.0)?.redo().await
        });
        scope.record_as_one(work, |_| Finished::done()).await
    }

    /// Makes a file or a folder what it was at a point, and leaves everything else alone. Processes are
    /// ended first. It is a point of its own, and can be undone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such point, or no such path at it; others as
    /// [`undo`](Self::undo).
    pub async fn restore_path(self, path: &str, point: &str) -> Result<TransitionReport> {
        let scope = self.0.extension("restore_path", || json!({"path": path, "point": point}));
        let work = Box::pin(async {
            self.0.refuse_live_terminal().await?;
            JournalContext::of(self.0)?.restore_path(path, point).await
        });
        scope.record_as_one(work, |_| Finished::done()).await
    }

    /// Takes over what was changed in a fork of this session since it was forked: text by lines, anything else
    /// as whole files. Where both changed the same, this session's stays and the fork's lies beside it as
    /// `NAME.fork-ID`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if neither is a fork of the other, nor both of the same; others as
    /// [`undo`](Self::undo).
    pub async fn merge(self, fork: &Session) -> Result<MergeReport> {
        let scope = self.0.extension("merge", || json!({"fork": fork.id()}));
        let work = Box::pin(async {
            self.0.refuse_live_terminal().await?;
            let fork = JournalContext::of(fork)?;
            JournalContext::of(self.0)?.merge(&fork).await
        });
        scope.record_as_one(work, |_| Finished::done()).await
    }

    /// Keeps a point as the snapshot `name` of the store of this home, for as long as that is not removed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such point; others if it cannot be written.
    pub async fn save_point(self, point: &str, name: &str) -> Result<SnapshotInfo> {
        let scope = self.0.extension("save_point", || json!({"point": point, "snapshot": name}));
        let journal = JournalContext::of(self.0)?;
        scope.record_as_one(Box::pin(journal.save_point(point, name)), |_| Finished::done()).await
    }
}

impl Session {
    /// The points of its workspace.
    #[must_use]
    pub fn journal(&self) -> SessionJournal<'_> {
        SessionJournal(self)
    }

    /// Refuses to end a terminal that somebody may be typing on.
    async fn refuse_live_terminal(&self) -> Result<()> {
        let all = self.list_processes().await?;
        let Some(terminal) = all.iter().find(|one| one.terminal && one.exit.is_none()) else {
            return Ok(());
        };
        let (id, process) = (self.id(), terminal.id);
        let message = format!(
            "a terminal is open in session {id} (process {process}): {}",
            terminal.argv.join(" ")
        );
        Err(Error::new(ErrorKind::Conflict, message)
            .with_condition(Condition::TerminalOpen(id.to_string(), process.0)))
    }

    /// Makes a point of a command that is about to start, if the session has a journal of commands.
    pub(crate) async fn begin_point(&self, command: &Command) -> Result<Option<CommandPoint>> {
        let is_wanted = self.life.terms.journal.is_some_and(|journal| journal.commands);
        // What lays out a workspace is no command of anybody's.
        if !is_wanted || !self.life.is_started.load(Ordering::Acquire) {
            return Ok(None);
        }
        Box::pin(CommandPoint::begin(JournalContext::of(self)?, command)).await.map(Some)
    }

    /// What makes points of the lines somebody types on the terminal of a process that was started before.
    pub(super) fn typed_lines(&self, process: ProcessId) -> Result<Option<TerminalLines>> {
        let is_wanted = self.life.terms.journal.is_some_and(|journal| journal.commands);
        match is_wanted {
            true => Ok(Some(TerminalLines::of(JournalContext::of(self)?, process))),
            false => Ok(None),
        }
    }

    /// Finishes what was under way when the last machine of the session ended.
    pub(super) async fn recover_journal(&self) -> Result<()> {
        let journal = JournalContext::of(self)?;
        match journal.is_begun() {
            true => Box::pin(journal.recover()).await,
            false => Ok(()),
        }
    }
}
