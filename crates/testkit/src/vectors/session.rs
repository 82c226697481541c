//! Cases that need a session: one of its own for each.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bastide::{Client, CreateOptions, Session, SnapshotTypes};
use bastide_model::{Error, ErrorKind, Manifest, PathGrant, Result};

use super::Case;

/// Does something with a session whose workspace is `ws` in the case's scratch folder, and deletes the
/// session.
pub(crate) fn in_session<T>(
    case: &Case<'_>,
    grants: Vec<PathGrant>,
    work: impl AsyncFnOnce(&Session) -> Result<T>,
) -> Result<T> {
    let manifest =
        Manifest { root: workspace(case)?, extra_path_grants: grants, ..Manifest::default() };
    with_session(case, &manifest, CreateOptions::default(), work)
}

/// The workspace of a case: `ws` in its scratch folder.
pub(crate) fn workspace(case: &Case<'_>) -> Result<String> {
    Ok(case.scratch.path()?.join("ws").to_string_lossy().into_owned())
}

/// Does something with a session that has not started, and deletes it.
pub(crate) fn with_session<T>(
    case: &Case<'_>,
    manifest: &Manifest,
    options: CreateOptions,
    work: impl AsyncFnOnce(&Session) -> Result<T>,
) -> Result<T> {
    run(async {
        let session = client(case)?.create_unstarted(manifest, options).await?;
        let done = work(&session).await;
        session.delete().await?;
        done
    })?
}

/// A client of the case's backend.
pub(crate) fn client(case: &Case<'_>) -> Result<Client> {
    match case.backend {
        Some(backend) => {
            let types = SnapshotTypes::default();
            Ok(Client::new(Arc::clone(backend)).with_snapshot_types(types))
        }
        None => Err(Error::new(ErrorKind::Internal, "the case needs a session")),
    }
}

/// How long a case may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs something to its end, or to the deadline.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    let done = runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await });
    done.map_err(|_| Error::new(ErrorKind::Timeout, "the case did not come to its end"))
}
