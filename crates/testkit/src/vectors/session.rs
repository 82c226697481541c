//! Cases that need a session: one of its own for each, in its scratch folder.

use std::future::Future;

use bastide::{Client, CreateOptions, Session};
use bastide_model::{Error, ErrorKind, Manifest, PathGrant, Result};

use super::Case;

/// Does something with a session whose workspace is `ws` in the case's scratch folder, and deletes the
/// session.
pub(crate) fn in_session<T>(
    case: &Case<'_>,
    grants: Vec<PathGrant>,
    work: impl AsyncFnOnce(&Session) -> Result<T>,
) -> Result<T> {
    let Some(backend) = case.backend else {
        return Err(Error::new(ErrorKind::Internal, "the case needs a session"));
    };
    let root = case.scratch.path()?.join("ws").to_string_lossy().into_owned();
    let manifest = Manifest { root, extra_path_grants: grants, ..Manifest::default() };
    run(async {
        let client = Client::new(std::sync::Arc::clone(backend));
        let session = client.create(&manifest, CreateOptions::default()).await?;
        let done = work(&session).await;
        session.delete().await?;
        done
    })?
}

/// Runs something to its end.
pub(crate) fn run<T>(work: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
    Ok(runtime.block_on(work))
}
