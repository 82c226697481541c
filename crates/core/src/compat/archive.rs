//! The workspace as an archive, out of a session and into one.

use bastide_archive::tar::LinkPolicy;
use bastide_model::events::Operation;

use super::ReferenceSession;
use crate::events::Finished;
use crate::session::files::Spool;
use crate::snapshot::tar::{archive_of, restore_archive, unpack};
use crate::{Content, Result, WorkspaceArchive};

impl ReferenceSession<'_> {
    /// The workspace as a tar archive, without what snapshots leave out.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveReadError` if it cannot be read.
    pub async fn persist_workspace(self) -> Result<WorkspaceArchive> {
        let session = self.session;
        let scope = session.operation_scope(|| Operation::PersistWorkspace {
            workspace_root: session.root().as_str().to_owned(),
            tar_path: session.life.state().snapshot.tar_path(),
        });
        let work = async {
            let manifest = session.manifest();
            archive_of(&session.workspace(&manifest)?).await
        };
        scope.record_as_one(work, |archive| Finished::persisted(archive.length())).await
    }

    /// Unpacks a tar archive into the workspace by the reference's rules: what is there stays unless a
    /// member takes its place; owners and times are not taken over. Every member is judged before the
    /// first is made.
    ///
    /// # Errors
    ///
    /// `WorkspaceArchiveWriteError` if it is damaged or holds a member that must not be unpacked.
    pub async fn hydrate_workspace(self, data: impl Into<Content<'_>>) -> Result<()> {
        let (session, data) = (self.session, data.into());
        let scope = session.operation_scope(|| Operation::HydrateWorkspace {
            untar_dir: session.root().as_str().to_owned(),
            bytes: data.length(),
        });
        let work = unpack::by_the_rules(session, data, LinkPolicy::Inside);
        scope.record_as_one(work, |_| Finished::done()).await
    }

    /// Makes the workspace what an archive says, as a start does with a snapshot: all of it is read and
    /// judged before anything in the workspace is changed.
    ///
    /// # Errors
    ///
    /// As [`hydrate_workspace`](Self::hydrate_workspace), with the workspace unchanged; and if the
    /// workspace is a folder of the caller's that has something in it.
    pub async fn restore_workspace(self, data: impl Into<Content<'_>>) -> Result<()> {
        let (session, data) = (self.session, data.into());
        let scope = session.operation_scope(|| Operation::HydrateWorkspace {
            untar_dir: session.root().as_str().to_owned(),
            bytes: data.length(),
        });
        let work = async {
            let unreadable =
                || bastide_model::error::raise::workspace_archive_write(session.root().as_str());
            let spool = Spool::fill(data, None).await.map_err(|_| unreadable())?;
            let file = spool.into_file().map_err(|error| unreadable().with_source(error))?;
            let manifest = session.manifest();
            restore_archive(&session.workspace(&manifest)?, file).await
        };
        scope.record_as_one(work, |()| Finished::done()).await
    }
}
