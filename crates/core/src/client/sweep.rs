//! Clearing away what was left behind.
//!
//! What nobody can tell is never garbage. A session goes only if its record says that it was never made to
//! its end, or that somebody was removing it; one that ended goes if the caller asks for those. Everything
//! else stays and is named with the reason.

use bastide_model::{Error, ErrorKind, Result};

use super::Client;
use super::removal::Removal;
use crate::backend::{MachineExit, MachineStatus, SessionId, SweepMode};
use crate::state::{
    ClaimAttempt, Record, SessionFolder, Stage, Transition, TransitionAttempt, has_tombstone,
};

/// The options of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepOptions {
    /// Whether to remove sessions that ended or were lost, with their files. They are kept by
    /// default.
    pub ended: bool,
    /// Whether to remove nothing, and only report what would be removed.
    pub dry_run: bool,
}

impl SweepOptions {
    /// Removes sessions that ended by themselves, or were lost, with their files.
    #[must_use]
    pub fn ended(mut self) -> Self {
        self.ended = true;
        self
    }

    /// Removes nothing, and only says what would be.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }
}

impl SweepOptions {
    fn mode(self) -> SweepMode {
        if self.dry_run { SweepMode::Report } else { SweepMode::Remove }
    }
}

/// One item of a sweep's report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepItem {
    /// The session it belonged to, if known.
    pub id: Option<SessionId>,
    /// What it was.
    pub what: String,
    /// Why it was removed, could not be removed, or was kept.
    pub why: String,
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepReport {
    /// What was removed, or would have been.
    pub removed: Vec<SweepItem>,
    /// What could not be removed, and why.
    pub failed: Vec<SweepItem>,
    /// Sessions that ended or were lost, and were kept because of their files.
    pub ended: Vec<SweepItem>,
    /// What was kept because nothing tells whether it is needed, and why.
    pub unclear: Vec<SweepItem>,
    /// How many sessions were left alone: running, stopped on purpose, or being changed by another
    /// process.
    pub kept: usize,
    /// How many sessions the rebuilt index holds.
    pub indexed: usize,
}

/// What is to become of a session that nobody keeps alive.
enum Verdict {
    Keep,
    KeepEnded(MachineExit),
    Unclear(String),
    Remove { why: String, end: Option<MachineExit>, record: Option<Box<Record>> },
}

impl Client {
    /// Removes what no session of this backend needs: sessions whose creation was interrupted,
    /// incomplete removals, processes without a warden. A running session is never touched, and one
    /// that ended keeps its files.
    ///
    /// # Errors
    ///
    /// Fails if the home cannot be read. What cannot be removed is in the report.
    pub async fn sweep(&self) -> Result<SweepReport> {
        self.sweep_with(SweepOptions::default()).await
    }

    /// Like [`sweep`](Self::sweep), with options.
    ///
    /// # Errors
    ///
    /// As `sweep`.
    pub async fn sweep_with(&self, options: SweepOptions) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        if !options.dry_run {
            self.finish_deletions().await;
        }
        for id in self.state.ids()? {
            if let Err(error) = self.sweep_session(&id, options, &mut report).await {
                report.unclear(&id, error.to_string());
            }
        }
        for path in self.state.remains(None)? {
            let removed = match options.dry_run {
                true => Ok(()),
                false => self.backend.discard(&path).await,
            };
            let what = path.display().to_string();
            report.note(None, what, "its removal was interrupted", removed);
        }
        match self.backend.sweep(options.mode()).await {
            Ok(orphans) => {
                let why = "no session leads to it";
                orphans.removed.into_iter().for_each(|what| report.note(None, what, why, Ok(())));
                let unclear = orphans.unclear.into_iter();
                report.unclear.extend(unclear.map(|(what, why)| SweepItem { id: None, what, why }));
            }
            // Whether anything of ours is there cannot be told.
            Err(error) if error.kind() == ErrorKind::BackendLost => {
                let (what, why) = (self.backend.name().to_owned(), error.to_string());
                report.unclear.push(SweepItem { id: None, what, why });
            }
            Err(error) => {
                report.note(None, self.backend.name().to_owned(), "", Err(error));
            }
        }
        if !options.dry_run {
            self.state.tidy_names();
            match self.state.rebuild().await {
                Ok(count) => report.indexed = count,
                Err(error) => report.note(None, "the index".to_owned(), "", Err(error)),
            }
        }
        Ok(report)
    }

    async fn sweep_session(
        &self,
        id: &SessionId,
        options: SweepOptions,
        report: &mut SweepReport,
    ) -> Result<()> {
        let transition = match self.state.try_lock_transition(id)? {
            TransitionAttempt::Ours(transition) => transition,
            TransitionAttempt::Missing => return Ok(()),
            // Somebody is making, starting, stopping or removing it.
            TransitionAttempt::Taken => {
                report.kept += 1;
                return Ok(());
            }
        };
        let folder = match self.state.claim(id)? {
            ClaimAttempt::Missing => return Ok(()),
            ClaimAttempt::Ours(folder) => folder,
            ClaimAttempt::Kept => match self.end_unwatched(id, options).await? {
                Some(folder) => folder,
                None => return self.sweep_kept(id, transition, options, report).await,
            },
        };
        match self.classify(id, options).await? {
            Verdict::Keep => report.kept += 1,
            Verdict::KeepEnded(end) => report.ended(id, end.detail),
            Verdict::Unclear(why) => report.unclear(id, why),
            Verdict::Remove { why, .. } if options.dry_run => report.session(id, &why, Ok(())),
            Verdict::Remove { why, end, record } => {
                let removed = self.remove_held(&folder, transition, record).await;
                self.audit_swept(id, &why, end, &removed).await;
                report.session(id, &why, removed);
            }
        }
        Ok(())
    }

    async fn remove_held(
        &self,
        folder: &SessionFolder,
        transition: Transition,
        record: Option<Box<Record>>,
    ) -> Result<()> {
        let (backend, record) = (self.backend.as_ref(), record.map(|record| *record));
        Removal::of_held(backend, &self.state, folder, transition, record)?.execute().await
    }

    /// Ends a machine that nobody watches over: what runs of it can be reached by nobody. Its files stay.
    /// Gives the session to the caller if nothing is left that keeps it alive.
    async fn end_unwatched(
        &self,
        id: &SessionId,
        options: SweepOptions,
    ) -> Result<Option<SessionFolder>> {
        let Ok(Some(record)) = self.state.record(id) else { return Ok(None) };
        let Some(machine) = record.machine.filter(|_| record.backend == self.backend.name()) else {
            return Ok(None);
        };
        let status = self.backend.inspect(&machine).await;
        if options.dry_run || !matches!(status, Ok(MachineStatus::Broken { .. })) {
            return Ok(None);
        }
        self.backend.stop(&machine).await?;
        match self.state.claim(id)? {
            ClaimAttempt::Ours(folder) => Ok(Some(folder)),
            ClaimAttempt::Kept | ClaimAttempt::Missing => Ok(None),
        }
    }

    /// A session that somebody keeps alive is left alone; unless somebody was removing it, and was
    /// interrupted.
    async fn sweep_kept(
        &self,
        id: &SessionId,
        transition: Transition,
        options: SweepOptions,
        report: &mut SweepReport,
    ) -> Result<()> {
        let record = self.state.record(id);
        let is_ours = matches!(&record, Ok(Some(record)) if record.backend == self.backend.name());
        if !is_ours || !has_tombstone(&self.state.path_of(id)) {
            match record {
                Err(error) => report.unclear(id, error.to_string()),
                Ok(_) => report.kept += 1,
            }
            return Ok(());
        }
        let why = "its removal was interrupted";
        if options.dry_run {
            report.session(id, why, Ok(()));
            return Ok(());
        }
        // The turn is kept: without it the session could be gone, and another have its name.
        let backend = self.backend.as_ref();
        let removed = match Removal::of_announced(backend, &self.state, id, transition) {
            Ok(removal) => removal.execute().await,
            Err(error) => Err(error),
        };
        self.audit_swept(id, why, None, &removed).await;
        report.session(id, why, removed);
        Ok(())
    }

    /// A session no process keeps alive, and that nobody else can start meanwhile.
    async fn classify(&self, id: &SessionId, options: SweepOptions) -> Result<Verdict> {
        let record = match self.state.record(id) {
            Ok(Some(record)) => record,
            Ok(None) => {
                return Ok(match self.state.record_error(id) {
                    Some(error) => Verdict::Unclear(error.to_string()),
                    None => Verdict::Remove {
                        why: "making it was interrupted at once".to_owned(),
                        end: None,
                        record: None,
                    },
                });
            }
            Err(error) => return Ok(Verdict::Unclear(error.to_string())),
        };
        if record.backend != self.backend.name() {
            return Ok(Verdict::Keep);
        }
        let remove = |why: &str, end: Option<MachineExit>, record: Record| Verdict::Remove {
            why: why.to_owned(),
            end,
            record: Some(Box::new(record)),
        };
        if has_tombstone(&self.state.path_of(id)) {
            return Ok(remove("its removal was interrupted", None, record));
        }
        match (record.stage, &record.machine) {
            (Stage::Stopped | Stage::Stopping, _) => Ok(Verdict::Keep),
            (Stage::Starting, _) => Ok(remove("making it was interrupted", None, record)),
            (Stage::Running | Stage::Saving, None) => {
                Ok(Verdict::Unclear("its record names no machine".to_owned()))
            }
            (Stage::Running | Stage::Saving, Some(machine)) => {
                match self.backend.inspect(machine).await {
                    Ok(MachineStatus::Running { .. } | MachineStatus::Paused { .. }) => {
                        Ok(Verdict::Keep)
                    }
                    Ok(MachineStatus::Broken { why }) => {
                        if !options.dry_run {
                            self.backend.stop(machine).await?;
                        }
                        Ok(verdict_on(MachineExit::unrecorded(why), record, options))
                    }
                    Ok(MachineStatus::Ended(end)) => Ok(verdict_on(end, record, options)),
                    Err(error) => Ok(Verdict::Unclear(error.to_string())),
                }
            }
        }
    }
}

/// One that ended has its files, and somebody may want to go on with it.
fn verdict_on(end: MachineExit, record: Record, options: SweepOptions) -> Verdict {
    // What its lease ended was stopped on purpose.
    if end.is_expired() {
        return Verdict::Keep;
    }
    // One that was to end with its owner, and did, is nobody's; but for one that there was before its owner went on with it.
    let is_nobodys = record.tied && !record.was_there && end.is_abandoned();
    match options.ended || is_nobodys {
        true => Verdict::Remove {
            why: end.detail.clone(),
            end: Some(end),
            record: Some(Box::new(record)),
        },
        false => Verdict::KeepEnded(end),
    }
}

impl SweepReport {
    fn session(&mut self, id: &SessionId, why: &str, removed: Result<()>) {
        self.note(Some(id.clone()), format!("session {id}"), why, removed);
    }

    fn ended(&mut self, id: &SessionId, why: String) {
        self.ended.push(SweepItem { id: Some(id.clone()), what: format!("session {id}"), why });
    }

    fn unclear(&mut self, id: &SessionId, why: String) {
        self.unclear.push(SweepItem { id: Some(id.clone()), what: format!("session {id}"), why });
    }

    fn note(&mut self, id: Option<SessionId>, what: String, why: &str, removed: Result<(), Error>) {
        match removed {
            Ok(()) => self.removed.push(SweepItem { id, what, why: why.to_owned() }),
            Err(error) => self.failed.push(SweepItem { id, what, why: error.to_string() }),
        }
    }
}
