//! What a run leaves: its change as a patch and on its branch, its log, and the files that were named.

use std::path::Path;
use std::sync::Arc;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;

use super::{Workspace, outputs};
use crate::collect::Changes;
use crate::transcript::{LOG, make_results};
use crate::types::{Artifact, RunArtifacts, remarks};

/// The largest patch that is held in memory; a larger one is in its file.
const MAX_DIFF: u64 = 64 << 20;

/// Collects what is in a workspace and was asked for, and puts the change onto its branch.
pub(crate) async fn collect(
    workspace: &Arc<Workspace>,
    results: &Path,
    outputs: &[String],
    message: &str,
) -> Result<RunArtifacts> {
    let collected = collect_once(workspace, results, outputs, message).await;
    collected.map_err(|error| match workspace.note_uncollected() {
        Some(folder) => {
            error.with_hint(format!("what the agent did is kept in {}", folder.display()))
        }
        None => error,
    })
}

async fn collect_once(
    workspace: &Arc<Workspace>,
    results: &Path,
    outputs: &[String],
    message: &str,
) -> Result<RunArtifacts> {
    let (looked, results) = (Arc::clone(workspace), results.to_owned());
    let (outputs, message) = (outputs.to_vec(), message.to_owned());
    let collected = tokio::task::spawn_blocking(move || {
        let collected = look(&looked, &results, &outputs)?;
        Ok::<_, Error>((collected, looked.stage(&message)?))
    });
    let (mut artifacts, staged) = collected.await.map_err(|error| {
        Error::new(ErrorKind::Internal, format!("collecting did not come to its end: {error}"))
    })??;
    if let Some(staged) = staged {
        artifacts.branch = workspace.commit(staged).await?;
    }
    Ok(artifacts)
}

/// What is collected while nothing runs any more.
fn look(workspace: &Workspace, results: &Path, outputs: &[String]) -> Result<RunArtifacts> {
    make_results(results)?;
    let patch = results.join("changes.patch");
    // An earlier look is not the last one.
    drop(std::fs::remove_file(&patch));
    let Changes { files, patch_bytes, ignored, mut left_out, new_repositories } =
        workspace.collect(&patch)?;
    let named = outputs::collect(workspace.folder(), results, outputs, &mut left_out)?;
    let mut collected = RunArtifacts {
        changed_files: files,
        metadata: remarks(&ignored, &left_out, &new_repositories),
        ..RunArtifacts::default()
    };
    if patch_bytes <= MAX_DIFF {
        let text = std::fs::read_to_string(&patch).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot read {}: {error}", patch.display()))
        })?;
        collected.diff = Some(text);
    }
    let mut artifact = Artifact::new("patch", &patch);
    artifact.metadata.insert("bytes".to_owned(), Value::from(patch_bytes));
    collected.artifacts.push(artifact);
    let log = results.join(LOG);
    if log.is_file() {
        collected.artifacts.push(Artifact::new("log", log));
    }
    collected.artifacts.extend(named);
    Ok(collected)
}
