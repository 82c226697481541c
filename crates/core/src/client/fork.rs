//! Sessions that begin with the files of another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bastide_model::SessionState;
use bastide_model::snapshot::{FingerprintRecord, Snapshot};

use super::create::{Start, uuid_of};
use super::{Client, DEFAULT_ROOT, removal};
use crate::backend::SessionId;
use crate::journal::{ForkOrigin, JournalContext, JournalLog, begin_fork, read_log};
use crate::session::lifecycle::Preserved;
use crate::snapshot::store::points::PointOwner;
use crate::snapshot::store::{Store, StoreSnapshot, Tree};
use crate::snapshot::{Saved, SnapshotStorage, Workspace};
use crate::state::Record;
use crate::{Condition, Error, ErrorKind, Result, Session};

/// How many forks are made at once.
const AT_ONCE: usize = 8;

/// How many forks can be asked for.
const MOST: usize = 1000;

/// What the workspace of a fork begins with.
#[derive(Debug)]
pub(super) struct ForkSource {
    store: Store,
    /// Whose point it is, and which.
    session: String,
    tree: String,
    /// Saves the fork itself.
    keeper: Arc<dyn SnapshotStorage>,
}

impl ForkSource {
    /// Puts on record what a fork begins with, in the folder it has been given: before there is anything to fork, so
    /// that there is no fork without it.
    pub(super) async fn put_on_record(&self, id: &SessionId, folder: &Path) -> Result<()> {
        let owner = PointOwner::Session(id.to_string());
        self.store.share_point(&self.session, &self.tree, owner).await?;
        begin_fork(folder, ForkOrigin { session: self.session.clone(), tree: self.tree.clone() })
    }
}

#[async_trait]
impl SnapshotStorage for ForkSource {
    fn is_noop(&self) -> bool {
        self.keeper.is_noop()
    }

    async fn is_restorable(&self, _workspace: &Workspace<'_>) -> Result<bool> {
        Ok(true)
    }

    async fn save(&self, workspace: &Workspace<'_>) -> Result<Saved> {
        self.keeper.save(workspace).await
    }

    async fn restore(&self, workspace: &Workspace<'_>) -> Result<()> {
        self.store.restore_point(&Tree::of(workspace), &self.session, &self.tree).await
    }

    async fn fingerprint(&self, workspace: &Workspace<'_>) -> Result<Option<FingerprintRecord>> {
        self.keeper.fingerprint(workspace).await
    }
}

impl Client {
    /// Makes `count` sessions that begin with the files and the environment of a running one, as they are
    /// now or were at a point: each has every byte that was written before the call. Processes are not
    /// forked. A folder of the caller's is copied: the forks have workspaces of their own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a session of another backend or home, or more than a thousand forks; otherwise as
    /// [`SessionJournal::checkpoint`](crate::SessionJournal::checkpoint) and [`create`](Self::create). Either all forks are made or none.
    pub async fn fork(
        &self,
        session: &Session,
        count: usize,
        at: Option<&str>,
    ) -> Result<Vec<Session>> {
        self.fork_as(session, count, at, false).await
    }

    /// A fork as [`fork`](Self::fork) makes it, that ends with this process: whoever tries something leaves nothing
    /// behind, however it ends.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn fork_tied(&self, session: &Session, at: Option<&str>) -> Result<Session> {
        let fork = self.fork_as(session, 1, at, true).await?.pop();
        fork.ok_or_else(|| Error::new(ErrorKind::Internal, "there is no fork"))
    }

    async fn fork_as(
        &self,
        session: &Session,
        count: usize,
        at: Option<&str>,
        is_tied: bool,
    ) -> Result<Vec<Session>> {
        if count == 0 || count > MOST {
            let message = format!("{count} is no number of forks");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint(format!("ask for 1 to {MOST}")));
        }
        let id = session.id();
        if !Arc::ptr_eq(&session.state, &self.state) {
            let message = format!("session {id} is not of this home");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("save a snapshot of it, and make a session with that here"));
        }
        removal::check_backend(self.backend.as_ref(), id, session.backend.name())?;
        let mut record = self
            .state
            .record(id)?
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("there is no session {id}")))?;
        record.tied |= is_tied;
        let journal = JournalContext::of(session)?;
        let tree = Box::pin(journal.hold(at)).await?;
        let made = self.fork_all(session, &record, &tree, count).await;
        Box::pin(journal.release(&tree)).await;
        made
    }

    async fn fork_all(
        &self,
        session: &Session,
        record: &Record,
        tree: &str,
        count: usize,
    ) -> Result<Vec<Session>> {
        let mut forks = Vec::with_capacity(count);
        while forks.len() < count {
            let some = AT_ONCE.min(count - forks.len());
            let making = (0..some).map(|_| Box::pin(self.fork_one(session, record, tree)));
            let made = futures::future::join_all(making).await;
            let mut failed = None;
            for one in made {
                match one {
                    Ok(fork) => forks.push(fork),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                for fork in forks {
                    // The first failure is the one to tell.
                    drop(fork.delete().await);
                }
                return Err(error);
            }
        }
        Ok(forks)
    }

    async fn fork_one(&self, session: &Session, from: &Record, tree: &str) -> Result<Session> {
        let id = SessionId::random();
        let mut manifest = session.manifest();
        let mut record = Record::intent(id.clone(), self.backend.name(), from.spec.clone());
        record.spec.like = Some(session.id().clone());
        // Where the workspace of the other lies on the host is no place for this one.
        if from.spec.host_workspace.is_some() || session.life.terms.has_moved {
            DEFAULT_ROOT.clone_into(&mut manifest.root);
            record.spec.host_workspace = None;
            record.spec.root = super::create::root_of(&manifest)?;
        }
        record.tied = from.tied;
        record.env.clone_from(&from.env);
        for (key, value) in &mut record.env {
            if key == "HOME" && *value == from.spec.root.as_str() {
                record.spec.root.as_str().clone_into(value);
            }
        }
        self.refresh_egress(&mut record).await?;
        record.exposed_ports.clone_from(&from.exposed_ports);
        record.base_dir.clone_from(&from.base_dir);
        record.git = from.git.clone();
        record.concurrency = from.concurrency;
        record.journal = from.journal;
        // A lease that was taken from the other since is none of this one's.
        let is_free = session.lease().status().await.is_ok_and(|lease| !lease.is_limited());
        record.lease = from.lease.filter(|_| !is_free);
        let uuid = uuid_of(&id)?;
        let is_stored = match session.snapshot() {
            Snapshot::Custom(custom) => custom.downcast::<StoreSnapshot>().is_some(),
            _ => false,
        };
        let snapshot = match is_stored {
            true => StoreSnapshot { id: id.to_string(), from: None }.into_snapshot(),
            false => Snapshot::Noop { id: uuid.to_string() },
        };
        let keeper = self.types.keeper(&snapshot)?;
        let mut state = SessionState::new(uuid, snapshot, manifest, self.backend.unmade());
        state.exposed_ports.clone_from(&record.exposed_ports);
        let store = self.state.store()?;
        let origin =
            ForkSource { store, session: session.id().to_string(), tree: tree.to_owned(), keeper };
        let start = Start {
            state,
            preserved: Preserved::default(),
            discards_changes: false,
            progress: None,
            is_new: true,
            starts: true,
            unreadable: None,
            name: None,
            origin: Some(origin),
        };
        self.reserve_and_boot(record, start, None).await
    }

    /// The points of a session, whether it runs or not.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such session; others if its journal cannot be read.
    pub fn log(&self, id: &SessionId) -> Result<JournalLog> {
        let folder: PathBuf = self.state.path_of(id);
        if self.state.record(id)?.is_none() {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no session {id}"))
                .with_condition(Condition::SessionMissing));
        }
        read_log(&folder)
    }
}
