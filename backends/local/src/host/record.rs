//! Which files of the host a session was given, as it is on record.

use std::path::PathBuf;

use bastide::{Error, ErrorKind, GuestPath, MachineSpec, Result};
use serde::{Deserialize, Serialize};

use super::HostFile;
use crate::backend::State;

/// A file or folder of the host that a session was given when it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GrantedFile {
    /// Where it is inside.
    target: String,
    /// Where it was on the host, links followed.
    path: PathBuf,
    /// Its number there. That of its device is not kept: it may be another one after the machine is started again, and
    /// nobody inside can mount another on its path. A workspace has none: one that was removed is made again.
    inode: Option<u64>,
}

/// What is put on record about these.
pub(crate) fn granted_files(files: &[HostFile], root: &GuestPath) -> Vec<GrantedFile> {
    let granted = |file: &HostFile| {
        let (target, path) = (file.target.clone(), file.source.clone());
        let inode = file.identity?.inode;
        Some(GrantedFile { inode: (target != root.as_str()).then_some(inode), target, path })
    };
    files.iter().filter_map(granted).collect()
}

/// Refuses files that are others than the session was given before.
pub(super) fn refuse_others(files: &[HostFile], spec: &MachineSpec) -> Result<()> {
    // A record that says nothing of them is an earlier version's.
    let state = spec.before.as_ref().and_then(|machine| State::deserialize(&machine.state).ok());
    let granted = state.map(|state| state.files).unwrap_or_default();
    for now in granted_files(files, &spec.root) {
        let Some(then) = granted.iter().find(|then| then.target == now.target) else { continue };
        if *then != now {
            let path = now.path.display();
            let message = match then.path == now.path {
                true => format!(
                    "{path} is another file than the one the session was given at {}",
                    now.target
                ),
                false => format!(
                    "{} leads to {path} now, and led to {} when the session was given it",
                    now.target,
                    then.path.display()
                ),
            };
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_context("path", path.to_string())
                .with_hint("put back what was there, or make a new session, which is given what is there now"));
        }
    }
    Ok(())
}
