//! Laying out a manifest in a session.

pub(crate) mod accounts;
mod git;
pub(crate) mod mounts;
mod plan;
mod sources;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bastide_model::{Manifest, PosixPath};
use bastide_proto::request::OnConflict;

use crate::backend::Grant;
use crate::compat::raise;
use crate::snapshot::Progress;
use crate::{Result, Session};

pub use git::{GitFetch, GitOptions};
pub use mounts::MountInfo;
use plan::{LayoutStep, Put};
pub(crate) use sources::{SourceGrant, Sources};
pub(crate) use stream::{Target, UploadItem, lay_out};

/// A file of the host that was copied into the workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaterializedFile {
    /// Its path inside.
    pub path: String,
    /// The SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// The result of laying out a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Materialized {
    /// The files of the host that were copied, in the order of the manifest.
    pub files: Vec<MaterializedFile>,
}

/// Where files of the host may come from.
pub(crate) fn sources(base_dir: Option<&Path>, grants: &[Grant]) -> Option<Arc<Sources>> {
    let grant = |grant: &Grant| SourceGrant {
        path: grant.path.as_str().to_owned(),
        host: grant.host.clone(),
    };
    let base: PathBuf = base_dir?.to_owned();
    Some(Arc::new(Sources::new(&base, grants.iter().map(grant).collect())))
}

/// What is told how far laying out is.
pub(crate) type ProgressSink<'a> = Option<&'a (dyn Fn(Progress) + Send + Sync)>;

/// Lays out a manifest, or only what of it is made anew at every start.
pub(crate) async fn apply(
    session: &Session,
    manifest: &Manifest,
    only_ephemeral: bool,
    on_progress: ProgressSink<'_>,
) -> Result<Materialized> {
    mounts::check(session.backend.as_ref(), manifest)?;
    let steps = plan::steps(manifest, only_ephemeral)?;
    let sources = session.life.terms.sources.clone();
    let files = take_steps(session, steps, sources, on_progress).await?;
    // Last: nothing of the manifest may be written into a store.
    mounts::mount_all(session, manifest).await?;
    Ok(Materialized { files })
}

/// Lays out all of a manifest without mounts, with files of the host from `sources`.
pub(crate) async fn apply_from(
    session: &Session,
    manifest: &Manifest,
    sources: Option<Arc<Sources>>,
    on_progress: ProgressSink<'_>,
) -> Result<Materialized> {
    if let Some(target) = manifest.mount_targets()?.first() {
        let message = format!("{} is a mount, and mounts are made at a start", target.path);
        return Err(raise::value_error(message).with_class(crate::ErrorClass::MountConfigError));
    }
    let steps = plan::steps(manifest, false)?;
    Ok(Materialized { files: take_steps(session, steps, sources, on_progress).await? })
}

async fn take_steps(
    session: &Session,
    steps: Vec<LayoutStep>,
    sources: Option<Arc<Sources>>,
    on_progress: ProgressSink<'_>,
) -> Result<Vec<MaterializedFile>> {
    let mut files = Vec::new();
    let mut puts = Vec::new();
    for step in steps {
        match step {
            LayoutStep::Put(put) => {
                puts.push(put);
                continue;
            }
            step => {
                // What comes after a step of another kind must not be there before it.
                let puts = std::mem::take(&mut puts);
                files.extend(put_all(session, puts, sources.clone(), on_progress).await?);
                other(session, step).await?;
            }
        }
    }
    files.extend(put_all(session, puts, sources, on_progress).await?);
    Ok(files)
}

/// Copies one folder of the host to a path of the workspace.
pub(crate) async fn copy_dir(
    session: &Session,
    base: &Path,
    src: &PosixPath,
    to: &PosixPath,
) -> Result<Vec<MaterializedFile>> {
    let put = Put::HostDir { path: to.clone(), mode: 0o755, src: src.clone() };
    let sources = Sources::new(base, Vec::new());
    put_from(session, vec![put], Some(Arc::new(sources)), None).await
}

async fn put_all(
    session: &Session,
    puts: Vec<Put>,
    sources: Option<Arc<Sources>>,
    on_progress: ProgressSink<'_>,
) -> Result<Vec<MaterializedFile>> {
    if puts.is_empty() {
        return Ok(Vec::new());
    }
    put_from(session, puts, sources, on_progress).await
}

async fn put_from(
    session: &Session,
    puts: Vec<Put>,
    sources: Option<Arc<Sources>>,
    on_progress: ProgressSink<'_>,
) -> Result<Vec<MaterializedFile>> {
    let _permit = session.life.terms.limits.entry().await;
    let target = Target {
        link: session.link.as_ref(),
        base: &session.root,
        existing: OnConflict::Overwritten,
        through_links: true,
        progress: on_progress,
    };
    let root = PosixPath::new(session.root.as_str());
    lay_out(&target, move |chunks| stream::send_all(&root, puts, sources.as_deref(), chunks)).await
}

async fn other(session: &Session, step: LayoutStep) -> Result<()> {
    match step {
        LayoutStep::Put(_) => Ok(()),
        LayoutStep::Group { path, group } => {
            let place = PosixPath::new(session.root.as_str()).join(&path).to_string();
            let mut set = session.files().chown(&place, None, Some(&group)).await;
            if set.is_err() {
                // A user may give files only to groups of its own; the sandbox's root to every one.
                let as_root = session.files_as("0").chown(&place, None, Some(&group)).await;
                set = as_root.or(set);
            }
            set.map_err(|error| {
                let why = error.message().to_owned();
                raise::exec_nonzero(["chgrp", &group, &place], 1, Vec::new(), why)
                    .with_source(error)
            })
        }
        LayoutStep::Git(step) => git::put(session, &step).await,
    }
}
