//! Unpacking archives into a session.
//!
//! The host reads the archive and judges its members; the guest only makes what is safe, member by
//! member, through no link. Nothing inside can make the host unpack anything else than what it
//! judged: it holds the archive itself.

mod steps;

use bastide_archive::{ArchiveLimits, ArchiveScheme};
use bastide_proto::{GuestPath, OnConflict, Put, Request};
use serde_json::json;

use super::Files;
use super::path::Target;
use super::spool::{Spool, SpoolError};
use super::write::{Content, WriteOptions};
use crate::compat::raise;
use crate::{Error, Result};

/// How to unpack an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtractOptions {
    /// What the archive is: `tar` or `zip`. If none, what its extension says.
    pub scheme: Option<String>,
    /// What it may cost; nothing is limited if none.
    pub limits: Option<ArchiveLimits>,
}

impl ExtractOptions {
    /// Says what the archive is: `tar` or `zip`.
    #[must_use]
    pub fn scheme(mut self, scheme: impl Into<String>) -> Self {
        self.scheme = Some(scheme.into());
        self
    }

    /// Limits what the archive may cost.
    #[must_use]
    pub fn limits(mut self, limits: ArchiveLimits) -> Self {
        self.limits = Some(limits);
        self
    }
}

impl Files<'_> {
    /// Writes an archive to `path` and unpacks it beside itself. Every member is judged before the
    /// first is made; modes, owners and times are not applied. What fails in the middle leaves the
    /// members before it.
    ///
    /// # Errors
    ///
    /// `InvalidCompressionSchemeError` if it is neither tar nor zip; `WorkspaceArchiveWriteError`
    /// if it is damaged, larger than its limits, or holds a member that must not be unpacked (the
    /// context says which and why); and as [`write`](Self::write).
    pub async fn extract(
        &self,
        path: &str,
        data: impl Into<Content<'_>>,
        options: ExtractOptions,
    ) -> Result<()> {
        let scope = self.extension("extract", || json!({"path": path}));
        let work = async {
            if let Some(limits) = &options.limits {
                limits.validate()?;
            }
            let limits = options.limits.unwrap_or(ArchiveLimits::NONE);
            let target = Target::new(self.policy, path, raise::workspace_archive_write)?;
            let scheme = ArchiveScheme::of(target.given.as_str(), options.scheme.as_deref());
            let scheme = scheme?;
            // Nothing is told of an archive that would go elsewhere.
            self.resolve(path).await?;
            let spool = Spool::fill(data.into(), limits.max_input_bytes).await;
            let spool = spool.map_err(|why| not_kept(&target, &limits, why))?;
            let failed = |error| raise::workspace_archive_write(&target.path).with_source(error);
            let content = spool.content().map_err(failed)?;
            self.write_recorded(path, target.path.as_str(), content, WriteOptions::default())
                .await?;
            // Where it really is: its members go beside it.
            let archive = self.stat(path).await?.path;
            let folder = parent(&archive)?;
            let job = steps::Job {
                data: spool.reader().map_err(failed)?,
                scheme,
                limits,
                archive,
                folder: folder.as_str().to_owned(),
            };
            let plan = job.check_members().await?;
            let put = Put {
                user: self.user.clone(),
                base: folder,
                existing: OnConflict::Overwritten,
                through_links: false,
            };
            let stream = self.link.open(Request::Put(put)).await;
            let stream = stream.map_err(|error| match error.kind() {
                crate::ErrorKind::AgentLost => error,
                _ => raise::workspace_archive_write(&target.path).with_source(error),
            })?;
            plan.execute(stream).await
        };
        scope.record_unit(work).await
    }
}

fn not_kept(target: &Target, limits: &ArchiveLimits, why: SpoolError) -> Error {
    let error = raise::workspace_archive_write(&target.path);
    match why {
        SpoolError::Io(failure) => error.with_source(failure),
        SpoolError::TooLong(actual) => error
            .with_context("reason", "archive input size exceeds limit")
            .with_context("limit", limits.max_input_bytes)
            .with_context("actual", actual),
    }
}

/// The folder a file is in. The path came from the guest, so it is read like any other.
fn parent(path: &str) -> Result<GuestPath> {
    let folder = match path.rsplit_once('/') {
        Some(("", _)) => "/",
        Some((folder, _)) => folder,
        None => path,
    };
    let bad = |error| crate::link::broken(&format!("{folder:?} is no folder: {error}"));
    folder.parse().map_err(bad)
}
