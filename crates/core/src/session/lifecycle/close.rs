//! The end of a session: what is saved before its machine ends, and what ends before that.
//!
//! Where files end with their machine, whatever is written after the last save would be lost. So from its beginning on
//! nobody begins to use the session, and nothing runs inside.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bastide_model::events::Operation;

use super::{Saved, Session};
use crate::client::begin_saving;
use crate::events::Finished;
use crate::journal::Freeze;
use crate::state::Transition;
use crate::{Condition, ErrorKind, Result, workspace};

/// How long what runs may take to end once it was killed, and how often it is looked at.
const END: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(5);

/// What a session was saved as before it ends. Where its files end with it nothing runs inside until this is dropped.
#[derive(Default)]
pub(crate) struct LastSave {
    saved: Saved,
    _standstill: Option<(Freeze, Session)>,
}

impl LastSave {
    /// A save of files that outlive their machine.
    pub(crate) fn of(saved: Saved) -> Self {
        Self { saved, _standstill: None }
    }

    pub(crate) fn into_saved(self) -> Saved {
        self.saved
    }
}

impl Session {
    /// Saves the workspace while nothing runs, and has nothing run until the machine ends. Whatever was told to have been
    /// done is saved, then: commands that run are ended with the machine, and none begins.
    pub(crate) async fn save_at_last(self) -> Result<LastSave> {
        let (saved, freeze) = self.save_frozen().await?;
        let standstill = freeze.map(|freeze| (freeze, self));
        Ok(LastSave { saved, _standstill: standstill })
    }

    /// As [`save_at_last`](Self::save_at_last). What mounted something has to end before the machine does, and cannot while
    /// nothing runs: with mounts everything that runs is ended instead.
    pub(super) async fn save_frozen(&self) -> Result<(Saved, Option<Freeze>)> {
        let freeze = Freeze::begin(self.link.as_ref(), false).await?;
        let saved = self.save().await?;
        if self.manifest().mount_targets()?.is_empty() {
            return Ok((saved, Some(freeze)));
        }
        self.end_processes().await?;
        freeze.end().await?;
        self.release_mounts().await?;
        Ok((saved, None))
    }

    /// Runs the hooks, saves the workspace unless one of them failed, shuts down, and closes the
    /// dependencies: every step, also after one failed. Closing what is closed succeeds, and whoever
    /// closes at the same time waits.
    ///
    /// # Errors
    ///
    /// Fails with the first failure. Whatever it is, nothing of the session runs any more; if saving
    /// failed, what was saved before and the session's files are still there.
    pub async fn close(&self) -> Result<()> {
        let mut is_closed = self.life.closing.lock().await;
        if *is_closed {
            return Ok(());
        }
        self.suspend_lease().await;
        let mut done = self.life.hooks.run().await;
        let (mut turn, mut standstill) = (None, None);
        if !self.life.hooks.have_failed() {
            let saved = match self.saving_turn().await {
                Ok(Some(held)) => {
                    turn = Some(held);
                    self.save_frozen().await.map(|(_, freeze)| standstill = freeze)
                }
                Ok(None) => self.save().await.map(drop),
                Err(error) => Err(error),
            };
            done = done.and(saved.map_err(|error| {
                error.with_hint(match self.backend.keeps_files() {
                    true => "the session was shut down all the same; its files are there until it is deleted",
                    false => "the session was shut down all the same, and its files ended with it; what was saved before is there",
                })
            }));
        }
        let released = self
            .operation_scope(|| Operation::Shutdown)
            .record_as_one(self.shutdown_unrecorded(turn), |()| Finished::done())
            .await;
        drop(standstill);
        done = done.and(released);
        self.life.terms.dependencies.close().await;
        *is_closed = true;
        self.flush_events().await;
        done
    }

    /// The right to save a session whose files end with its machine, with nobody else beginning to use it.
    async fn saving_turn(&self) -> Result<Option<Transition>> {
        let is_shut_down = self.life.is_shut_down.load(Ordering::Acquire);
        if is_shut_down || self.life.terms.keeper.is_noop() {
            return Ok(None);
        }
        begin_saving(self.backend.as_ref(), &self.state, &self.machine).await
    }

    /// Has everything stored that was written to mounts, and unmounts them, before the machine ends. Commands that
    /// use one are ended first.
    pub(crate) async fn release_mounts(&self) -> Result<()> {
        let released = async {
            if self.manifest().mount_targets()?.is_empty() {
                return Ok(());
            }
            self.end_processes().await?;
            workspace::mounts::unmount_all(self).await
        };
        match released.await {
            // A machine that is gone has unmounted everything.
            Err(error) if matches!(error.kind(), ErrorKind::AgentLost | ErrorKind::BackendLost) => {
                Ok(())
            }
            Err(error) if error.condition() == Some(&Condition::MountNotStored) => {
                Err(error.with_hint(
                    "the session was shut down all the same; what is kept of it is there until the session is deleted",
                ))
            }
            released => released.map_err(|error| {
                error.with_hint(
                    "the session was shut down all the same; what of it was not stored is lost",
                )
            }),
        }
    }

    /// Ends every command, and what a command that is over left running: that has files of mounts open, too.
    async fn end_processes(&self) -> Result<()> {
        // Whatever cannot end goes with the machine, and so does a guest that does not answer.
        tokio::time::timeout(END, self.kill_all()).await.unwrap_or(Ok(()))
    }

    async fn kill_all(&self) -> Result<()> {
        loop {
            let mut all = self.list_processes().await?;
            all.retain(|process| process.exit.is_none() || !process.children.is_empty());
            if all.is_empty() {
                return Ok(());
            }
            for process in all {
                match self.kill_unrecorded(process.id).await {
                    // It ended by itself meanwhile.
                    Err(error) if error.is_not_found() => {}
                    killed => killed?,
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
}
