//! Stopping sessions: saving them, and ending their machines.

use serde_json::json;

use super::lifetime::{missing, paused};
use super::removal::{Stopped, begin_saving, being_removed, busy, go_on, never_made, shut_down};
use super::{Client, lease};
use crate::backend::{Machine, MachineStatus, SessionId};
use crate::session::lifecycle::LastSave;
use crate::session::retry;
use crate::snapshot::Saved;
use crate::state::{Record, Stage, TransitionAttempt, has_tombstone};
use crate::{Result, Session};

impl Client {
    /// Saves a session and ends all its processes. Its files are kept, and it can be
    /// [resumed](Self::resume); it no longer ends with any process.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such session. If it cannot be saved it is shut down
    /// nevertheless, and the error says why it was not saved; but where files end with their machine
    /// it goes on running.
    pub async fn stop(&self, id: &SessionId) -> Result<Saved> {
        loop {
            let record = self.record(id)?;
            if has_tombstone(&self.state.path_of(id)) {
                return Err(being_removed(id));
            }
            let mut turn = None;
            let saved = match (record.stage, &record.machine) {
                (Stage::Running | Stage::Saving, Some(machine)) => {
                    if let Ok(MachineStatus::Paused { hint }) = self.backend.inspect(machine).await
                    {
                        // What is paused cannot be saved, and somebody wants to go on with it.
                        return Err(paused(id, &hint));
                    }
                    self.audit(id, "stopping", || json!({})).await?;
                    turn = begin_saving(self.backend.as_ref(), &self.state, machine).await?;
                    let saved = self.save_to_stop(&record, machine, turn.is_some()).await;
                    if let (Err(_), Some(turn)) = (&saved, &turn) {
                        // Where that cannot be written, whoever comes next finds that nobody has the turn.
                        drop(go_on(&self.state, id, turn));
                    }
                    saved
                }
                // It was saved before that was on record.
                (Stage::Stopping, _) => Ok(LastSave::default()),
                (Stage::Starting | Stage::Running | Stage::Saving | Stage::Stopped, _) => {
                    // Somebody may be making it, or starting it again.
                    let _turn = match self.state.lock_transition(id).await? {
                        TransitionAttempt::Ours(turn) => turn,
                        TransitionAttempt::Missing => return Err(missing(id.as_str())),
                        TransitionAttempt::Taken => return Err(busy(id)),
                    };
                    let now = self.record(id)?;
                    match (now.stage, now.machine) {
                        (Stage::Stopped, _) => return Ok(Saved::default()),
                        (Stage::Running | Stage::Saving | Stage::Stopping, Some(_)) => continue,
                        (Stage::Starting | Stage::Running | Stage::Saving | Stage::Stopping, _) => {
                            return Err(never_made(id));
                        }
                    }
                }
            };
            if saved.is_err() && !self.backend.keeps_files() {
                // Its files would end with it.
                let hint = "it goes on running; stop it again once that is mended, or remove it";
                return saved.map(LastSave::into_saved).map_err(|error| error.with_hint(hint));
            }
            if let Some(machine) = &record.machine
                && shut_down(self.backend.as_ref(), &self.state, machine, turn).await?
                    == Stopped::Missing
            {
                return Err(missing(id.as_str()));
            }
            self.audit(id, "stopped", || json!({})).await?;
            return saved.map(LastSave::into_saved).map_err(|error| {
                let why = "it was shut down all the same; its files are there until it is deleted";
                error.with_hint(why)
            });
        }
    }

    /// Saves a session that is about to end. With the turn, its files end with it.
    async fn save_to_stop(
        &self,
        record: &Record,
        machine: &Machine,
        has_turn: bool,
    ) -> Result<LastSave> {
        lease::suspend_expiry(self.backend.as_ref(), machine).await;
        let saved = match retry::saving(|| self.attach_if_up(record, machine, has_turn)).await {
            Ok(Some(session)) if has_turn => session.save_at_last().await,
            Ok(Some(session)) => {
                let saved = session.save().await;
                let released = session.release_mounts().await;
                saved.and_then(|saved| released.map(|()| LastSave::of(saved)))
            }
            Ok(None) => Ok(LastSave::default()),
            Err(error) => Err(error),
        };
        // One whose starter was killed at the last moment goes with it, and has nothing left to be
        // asked for: what was saved is what it was started from.
        if saved.is_err() && self.is_abandoned(machine).await {
            return Ok(LastSave::default());
        }
        saved
    }

    /// Goes on with a session to save it. One whose machine is gone has nothing left to be asked for.
    async fn attach_if_up(
        &self,
        record: &Record,
        machine: &Machine,
        has_turn: bool,
    ) -> Result<Option<Session>> {
        let id = &machine.id;
        match self.backend.inspect(machine).await? {
            MachineStatus::Running { .. } if has_turn => {
                self.connect_to(record.clone(), machine.clone()).await.map(Some)
            }
            MachineStatus::Running { .. } => self.attach(id).await.map(Some),
            MachineStatus::Paused { hint } => Err(paused(id, &hint)),
            MachineStatus::Broken { .. } | MachineStatus::Ended(_) => Ok(None),
        }
    }

    /// Whether a machine never came to live on without whoever started it.
    async fn is_abandoned(&self, machine: &Machine) -> bool {
        let status = self.backend.inspect(machine).await;
        matches!(status, Ok(MachineStatus::Ended(end)) if end.is_abandoned())
    }
}
