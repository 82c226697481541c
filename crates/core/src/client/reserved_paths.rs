//! What of the host no session may be given: what Bastide itself keeps there.

use std::path::{Path, PathBuf};

use crate::backend::MachineSpec;
use crate::egress::HOME_POLICY_FILE;
use crate::events::AUDIT_FOLDER;
use crate::{Error, ErrorKind, Result};

/// What lies in the home and is nobody's workspace: sessions, guests, caches, what is on record, and what its owner decided for
/// all sessions.
const OWN: &[&str] = &[
    "sessions",
    "names",
    "guests",
    AUDIT_FOLDER,
    "snapshots",
    "cache",
    "mount-cache",
    "package-cache",
    "queue",
    "admission.lock",
    "config.toml",
    HOME_POLICY_FILE,
    "format",
    "engines",
    "kubernetes",
    "sbx",
    "identity.json",
    "state.db",
    "state.db-journal",
    "state.lock",
];

/// Folders of a run that its agent works in.
const OF_AGENTS: &[&str] = &["work", "home", "empty"];

/// Refuses a machine that could reach what is kept about sessions.
pub(super) fn check(home: &Path, spec: &MachineSpec) -> Result<()> {
    // A grant without a place on the host is of the machine itself.
    let shared = spec.grants.iter().map(|grant| grant.host.as_path());
    let shared = shared.filter(|path| !path.as_os_str().is_empty());
    for path in shared.chain(spec.host_workspace.as_deref()) {
        if is_ours(home, path) {
            let message = format!("{} holds what Bastide keeps about sessions", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_context("path", path.display().to_string())
                .with_hint("give the session a folder of its own"));
        }
    }
    Ok(())
}

fn is_ours(home: &Path, path: &Path) -> bool {
    // What is not there yet holds nothing; what it is in may.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
    home.starts_with(&path)
        || OWN.iter().any(|own| path.starts_with(home.join(own)))
        || is_of_runs(&runs_home(&home), &path)
}

/// Where runs of agents are kept, beside the home: agents work in folders of it.
#[must_use]
pub fn runs_home(home: &Path) -> PathBuf {
    let mut name = home.file_name().unwrap_or_default().to_owned();
    name.push("-agents");
    home.with_file_name(name)
}

/// Whether a path has what is on record about runs: nothing of it may be written by an agent, but in the folders beneath
/// that of its own run.
fn is_of_runs(runs: &Path, path: &Path) -> bool {
    if runs.starts_with(path) {
        return true;
    }
    let Ok(beneath) = path.strip_prefix(runs) else { return false };
    let mut names = beneath.components().map(|part| part.as_os_str());
    let is_run = names.next().is_some_and(|name| name == "runs") && names.next().is_some();
    !is_run || !names.next().is_some_and(|name| OF_AGENTS.iter().any(|own| name == *own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_own_folders_to_itself() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join("audit/x")).unwrap();
        std::os::unix::fs::symlink(&home, folder.path().join("link")).unwrap();
        let cases = [
            ("", true),
            ("home", true),
            ("link", true),
            ("home/audit", true),
            ("link/audit/x", true),
            ("home/sessions", true),
            ("home/project", false),
            ("other", false),
            ("home/mount-cache", true),
            ("home/package-cache/pypi", true),
            ("home/policy.yaml", true),
            ("home/config.toml", true),
            ("home/queue", true),
            ("home-agents", true),
            ("home-agents/results", true),
            ("home-agents/runs/one", true),
            ("home-agents/runs/one/run.json", true),
            ("home-agents/runs/one/work", false),
        ];
        for (path, want) in cases {
            assert_eq!(is_ours(&home, &folder.path().join(path)), want, "{path:?}");
        }
    }

    #[test]
    fn the_page_of_files_has_them_all() {
        let page = include_str!("../../../../docs/configuration.md");
        for name in OWN {
            let is_there = [format!("`{name}`"), format!("`{name}/")];
            assert!(is_there.iter().any(|written| page.contains(written)), "{name}");
        }
    }
}
