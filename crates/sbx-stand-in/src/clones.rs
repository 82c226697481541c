//! `--clone`: a clone of the workspace's repository of the sandbox's own. The repository itself is there to be read, and
//! the clone is a remote of it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Failure;
use crate::state::Database;

/// Where the repository is in the sandbox.
pub(crate) const SOURCE: &str = "/run/sandbox/source";

/// Where the clone is, beneath the home of the sandbox's user.
const PLACE: &str = "workspace";

/// The folder of commands in such a sandbox.
pub(crate) const FOLDER: &str = "/home/agent/workspace";

/// Clones a repository onto the disk of a sandbox, and makes that a remote of it.
pub(crate) fn make(world: &Database, sandbox: &str, repository: &str) -> Result<(), Failure> {
    if !Path::new(repository).join(".git").is_dir() {
        let message = format!("--clone needs the main worktree of a Git repository: {repository}");
        return Err(Failure(1, message));
    }
    let home = world.disk(sandbox, "home");
    std::fs::create_dir_all(&home)?;
    let place = home.join(PLACE);
    let place = place.to_string_lossy();
    git(&["clone", "--quiet", "--no-hardlinks", "--", repository, &place])?;
    git(&["-C", repository, "remote", "add", &remote(sandbox), &place])
}

/// Takes the remote away again. What was not fetched goes with the sandbox.
pub(crate) fn forget(sandbox: &str, repository: &str) {
    // The repository may be gone, or its remote.
    drop(git(&["-C", repository, "remote", "remove", &remote(sandbox)]));
}

fn remote(sandbox: &str) -> String {
    format!("sandbox-{sandbox}")
}

fn git(words: &[&str]) -> Result<(), Failure> {
    let done = Command::new("git").args(words).stdin(Stdio::null()).output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(Failure(1, String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}
