//! Events in the workspace itself.

use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::events::{Event, WorkspaceLog, WorkspaceLogOptions};
use bastide_model::{ErrorClass, PosixPath};
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::Result;
use crate::events::{BoundSession, Sink, SinkOptions};

/// Keeps a log of the session's events in its own workspace, where the agent can read it. It is no
/// evidence: commands that can write to the workspace can change it.
#[derive(Debug)]
pub struct WorkspaceJsonl {
    log: WorkspaceLogOptions,
    pub(super) options: SinkOptions,
}

impl WorkspaceJsonl {
    /// A log with these options.
    #[must_use]
    pub fn new(log: WorkspaceLogOptions) -> Self {
        Self { log, options: SinkOptions::best_effort() }
    }
}

#[async_trait]
impl Sink for WorkspaceJsonl {
    fn kind(&self) -> &'static str {
        "WorkspaceJsonlSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    fn bind(&self, session: &BoundSession) -> Result<Option<Arc<dyn Sink>>> {
        let id = Uuid::parse_str(session.id().as_str()).unwrap_or_default();
        let log = WorkspaceLog::new(&self.log, id)?;
        Ok(Some(Arc::new(Bound {
            path: log.path().clone(),
            skip_path: log.skip_path().cloned(),
            log: Mutex::new(log),
            session: session.clone(),
            options: self.options.clone(),
        })))
    }

    async fn handle(&self, _events: &[Arc<Event>]) -> Result<()> {
        // Without a session there is no workspace to keep it in.
        Ok(())
    }
}

/// The log of one session.
#[derive(Debug)]
struct Bound {
    path: PosixPath,
    skip_path: Option<PosixPath>,
    log: Mutex<WorkspaceLog>,
    session: BoundSession,
    options: SinkOptions,
}

#[async_trait]
impl Sink for Bound {
    fn kind(&self) -> &'static str {
        "WorkspaceJsonlSink"
    }

    fn options(&self) -> &SinkOptions {
        &self.options
    }

    async fn handle(&self, events: &[Arc<Event>]) -> Result<()> {
        let mut log = self.log.lock().await;
        let mut is_due = false;
        for event in events {
            is_due |= log.record(event)?;
        }
        if is_due { self.write(&mut log).await } else { Ok(()) }
    }

    fn skip_path(&self) -> Option<PosixPath> {
        self.skip_path.clone()
    }
}

impl Bound {
    /// Adds what waits to the file, unless the session is over: then it waits on.
    async fn write(&self, log: &mut WorkspaceLog) -> Result<()> {
        if !self.session.running().await {
            return Ok(());
        }
        let (files, path) = (self.session.files(), self.path.as_str());
        let existing = match log.read_limit() {
            Some(limit) => files.read_bounded(path, limit as u64).await,
            None => files.read(path).await,
        };
        let existing = match existing {
            Err(error) if error.class() == Some(ErrorClass::WorkspaceReadNotFoundError) => {
                Vec::new()
            }
            existing => existing?.to_vec(),
        };
        if let Some(content) = log.content(&existing)? {
            files.write(path, content).await?;
            log.written();
        }
        Ok(())
    }
}
