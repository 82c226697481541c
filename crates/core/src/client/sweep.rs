//! Clearing away what was left behind.

use bastide_model::{Error, Result};

use super::Client;
use crate::backend::{MachineStatus, SessionId};
use crate::state::{Claim, SessionFolder, Stage};

/// Something a sweep removed, or wanted to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The session it was part of, where that is known.
    pub id: Option<SessionId>,
    /// What it was.
    pub what: String,
    /// Why it was not needed any more, or could not be removed.
    pub why: String,
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// What was removed.
    pub removed: Vec<Swept>,
    /// What should have been, and why it was not.
    pub failed: Vec<Swept>,
    /// How many sessions are alive, or stopped on purpose, and were left alone.
    pub kept: usize,
    /// How many sessions the index holds, which was made anew.
    pub indexed: usize,
}

impl Client {
    /// Removes everything that no live or stopped session of this backend needs: sessions that ended or
    /// were interrupted while they were made, processes nobody watches over, half-finished removals. A
    /// live session is never touched.
    ///
    /// # Errors
    ///
    /// Fails if the home cannot be read. What cannot be removed is in the report.
    pub async fn sweep(&self) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for id in self.state.ids()? {
            self.sweep_session(&id, &mut report).await?;
        }
        for path in self.state.remains()? {
            let removed = self.backend.discard(&path).await;
            let what = path.display().to_string();
            report.note(None, what, "its removal was interrupted", removed);
        }
        match self.backend.sweep().await {
            Ok(removed) => {
                let why = "no session leads to it";
                removed.into_iter().for_each(|what| report.note(None, what, why, Ok(())));
            }
            Err(error) => {
                report.note(None, self.backend.name().to_owned(), "", Err(error));
            }
        }
        match self.state.rebuild().await {
            Ok(count) => report.indexed = count,
            Err(error) => report.note(None, "the index".to_owned(), "", Err(error)),
        }
        Ok(report)
    }

    async fn sweep_session(&self, id: &SessionId, report: &mut SweepReport) -> Result<()> {
        match self.state.claim(id)? {
            Claim::Missing => {}
            Claim::Ours(folder) => self.sweep_left(id, &folder, report).await,
            // Somebody keeps it alive. Only a machine nobody watches over is not worth that.
            Claim::Kept => {
                let record = self.state.record(id).ok().flatten();
                let ours = record.filter(|record| record.backend == self.backend.name());
                let machine = ours.and_then(|record| record.machine);
                let status = match &machine {
                    Some(machine) => Some(self.backend.inspect(machine).await),
                    None => None,
                };
                match (status, machine) {
                    (Some(Ok(MachineStatus::Broken { why })), Some(machine)) => {
                        let destroyed = self.backend.destroy(&machine).await;
                        self.note_swept(id, &why, None, &destroyed).await;
                        report.session(id, &why, destroyed);
                    }
                    _ => report.kept += 1,
                }
            }
        }
        Ok(())
    }

    /// A session no process keeps alive: where its backend says that it runs, or where it was stopped
    /// on purpose, it stays.
    async fn sweep_left(&self, id: &SessionId, folder: &SessionFolder, report: &mut SweepReport) {
        let mut ended = None;
        let (why, removed) = match self.state.record(id) {
            Ok(Some(record)) if record.backend != self.backend.name() => {
                report.kept += 1;
                return;
            }
            Ok(Some(record)) if record.stage == Stage::Stopped => {
                report.kept += 1;
                return;
            }
            Ok(Some(record)) => match (record.stage, record.machine) {
                (Stage::Running, Some(machine)) => match self.backend.inspect(&machine).await {
                    Ok(MachineStatus::Running { .. } | MachineStatus::Paused { .. }) => {
                        report.kept += 1;
                        return;
                    }
                    Ok(MachineStatus::Broken { why }) => {
                        (why, self.backend.destroy(&machine).await)
                    }
                    Ok(MachineStatus::Ended(end)) => {
                        ended = Some(end.clone());
                        (end.detail, self.backend.destroy(&machine).await)
                    }
                    Err(error) => (String::new(), Err(error)),
                },
                _ => {
                    let why = "making it was interrupted".to_owned();
                    (why, self.backend.discard(folder.path()).await)
                }
            },
            Ok(None) => {
                let why = "making it was interrupted at once".to_owned();
                (why, self.backend.discard(folder.path()).await)
            }
            Err(damaged) => (damaged.to_string(), self.backend.discard(folder.path()).await),
        };
        self.note_swept(id, &why, ended, &removed).await;
        report.session(id, &why, removed);
    }
}

impl SweepReport {
    fn session(&mut self, id: &SessionId, why: &str, removed: Result<()>) {
        self.note(Some(id.clone()), format!("session {id}"), why, removed);
    }

    fn note(&mut self, id: Option<SessionId>, what: String, why: &str, removed: Result<(), Error>) {
        match removed {
            Ok(()) => self.removed.push(Swept { id, what, why: why.to_owned() }),
            Err(error) => self.failed.push(Swept { id, what, why: error.to_string() }),
        }
    }
}
