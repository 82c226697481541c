//! What of the host no session may be given: what Bastide itself keeps there.

use std::path::Path;

use crate::backend::MachineSpec;
use crate::events::AUDIT_FOLDER;
use crate::{Error, ErrorKind, Result};

/// Folders of the home that are nobody's workspace: sessions, guests, and what is on record.
const OWN: &[&str] = &["sessions", "guests", AUDIT_FOLDER];

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
    home.starts_with(&path) || OWN.iter().any(|own| path.starts_with(home.join(own)))
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
        ];
        for (path, want) in cases {
            assert_eq!(is_ours(&home, &folder.path().join(path)), want, "{path:?}");
        }
    }
}
