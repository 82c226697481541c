//! A clone of the user's repository that shares nothing with it.

use std::fs;
use std::path::Path;

use bastide::{Error, ErrorKind, Result};

use super::uncommitted::CloneState;
use super::{WorkspaceOptions, WorkspaceParts, announce, io_error, target, uncommitted};
use crate::collect::{Baseline, BaselineOptions};
use crate::git::location::GitLocation;
use crate::git::refs::{self, Head};
use crate::git::{GitDir, finish, git};
use crate::workspace::agent_files::{ExistingFile, put};
use crate::workspace::cleanup_log::RunFolder;

/// The branch a clone is on where the repository is on none.
const BRANCH: &str = "bastide";

pub(super) async fn make(
    source: &Path,
    place: GitLocation,
    options: &WorkspaceOptions,
    run: &RunFolder,
) -> Result<WorkspaceParts> {
    let head = refs::head(&place)?;
    let target = match &options.branch {
        None => None,
        Some(branch) => Some(target(&place, branch)?),
    };
    if let Some(target) = &target {
        announce(run, |journal| {
            journal.repository = Some(place.common_dir.clone());
            journal.branch = Some((target.name.clone(), None));
        })?;
    }
    let folder = run.path().join("work");
    let own = GitDir::make(&run.path().join("git"), &place)
        .map_err(io_error("cannot read the repository"))?;
    // What is in the folder is noted while git copies: neither needs the other.
    let before = (place.git_dir != source).then(|| {
        let (source, noted) = (source.to_owned(), BaselineOptions::new(run.scratch()));
        tokio::task::spawn_blocking(move || Baseline::record(&source, noted))
    });
    copy_history(&own, &folder, &head, &place, run).await?;
    let copied = Baseline::record(&folder, BaselineOptions::new(run.scratch()))?;
    let mut is_as_copied = true;
    if let Some(before) = before {
        let before = before.await.map_err(|error| {
            let message = format!("cannot note what is in {}: {error}", source.display());
            Error::new(ErrorKind::Internal, message)
        })??;
        let carried = uncommitted::over(source, &before, &folder, &copied, options.uncommitted)?;
        is_as_copied = carried == CloneState::Nothing;
    }
    put(&folder, &options.files, run, ExistingFile::Extended)?;
    let base = match is_as_copied && options.files.is_empty() {
        true => copied,
        false => Baseline::record(&folder, BaselineOptions::new(run.scratch()))?,
    };
    Ok(WorkspaceParts { folder, grants: Vec::new(), base, target, alone: None })
}

/// Copies what leads to `HEAD`, as a new pack, and checks it out.
async fn copy_history(
    own: &GitDir,
    folder: &Path,
    head: &Head,
    place: &GitLocation,
    run: &RunFolder,
) -> Result<()> {
    let branch = head.branch.as_deref().unwrap_or(BRANCH);
    let mut init = git();
    init.args(["init", "--quiet", "--template=", "--initial-branch", branch]);
    if place.hash == crate::collect::HashKind::Sha256 {
        init.arg("--object-format=sha256");
    }
    init.arg(folder);
    finish(init, run.hold()?).await?;
    let Some(commit) = head.commit else { return Ok(()) };
    let start = own.path().join("refs/heads/base");
    fs::write(start, format!("{commit}\n")).map_err(io_error("cannot copy the repository"))?;
    let mut fetch = git();
    fetch.current_dir(folder);
    fetch.args(["fetch", "--quiet", "--no-tags", "--update-head-ok", "--update-shallow"]);
    fetch.arg("--no-write-fetch-head").arg(own.path());
    fetch.arg(format!("refs/heads/base:refs/heads/{branch}"));
    finish(fetch, run.hold()?).await?;
    let attributes = folder.join(".git/info");
    let write = || {
        fs::create_dir_all(&attributes)?;
        fs::copy(own.path().join("info/attributes"), attributes.join("attributes"))
    };
    write().map_err(io_error("cannot check the clone out"))?;
    let mut checkout = git();
    checkout.current_dir(folder).args(["read-tree", "--reset", "-u", &commit.to_string()]);
    finish(checkout, run.hold()?).await?;
    // The agent's own git follows the repository's attributes again.
    fs::remove_file(attributes.join("attributes")).map_err(io_error("cannot finish the clone"))
}
