//! Work that is not committed, on its way into a clone.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bastide::{Error, ErrorKind, Result};

use super::{Uncommitted, io_error};
use crate::collect::{Baseline, FileMode, open_folder, open_regular, split};

/// Whether a clone has other files than were checked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CloneState {
    Nothing,
    Something,
}

/// Makes the files of a clone those of the folder it was made of. The clone is ours alone until this is
/// done; the folder is read as anything is that somebody else may be writing to.
pub(super) fn over(
    source: &Path,
    before: &Baseline,
    folder: &Path,
    copied: &Baseline,
    uncommitted: Uncommitted,
) -> Result<CloneState> {
    let differs = |(path, mode, oid): &(&[u8], _, _)| copied.file(path) != Some((*mode, *oid));
    let changed: Vec<_> = before.files().filter(differs).collect();
    let gone: Vec<_> = copied.files().filter(|file| before.file(file.0).is_none()).collect();
    if changed.is_empty() && gone.is_empty() {
        return Ok(CloneState::Nothing);
    }
    if uncommitted == Uncommitted::Refused {
        let count = changed.len() + gone.len();
        let message = format!("{} has {count} files that are not committed", source.display());
        return Err(Error::new(ErrorKind::Conflict, message)
            .with_hint("commit or stash them, or let the agent have them"));
    }
    let at = |path: &[u8]| folder.join(Path::new(OsStr::from_bytes(path)));
    let failed = io_error("cannot carry uncommitted work over");
    let carry = || {
        for (path, ..) in &gone {
            remove(&at(path))?;
        }
        for (path, mode, _) in &changed {
            clear(folder, &at(path))?;
            copy(before, path, *mode, &at(path))?;
        }
        Ok(CloneState::Something)
    };
    carry().map_err(failed)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        // Something around it went already.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes way for a file: what is at its place goes, and files in place of folders around it.
fn clear(folder: &Path, path: &Path) -> io::Result<()> {
    let around: Vec<PathBuf> =
        path.ancestors().skip(1).take_while(|at| *at != folder).map(Path::to_owned).collect();
    for at in around.into_iter().rev() {
        match fs::symlink_metadata(&at) {
            Ok(found) if !found.is_dir() => fs::remove_file(&at)?,
            _ => {}
        }
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn copy(before: &Baseline, path: &[u8], mode: FileMode, to: &Path) -> io::Result<()> {
    let (around, name) = split(path);
    let around = open_folder(before.root(), around)?;
    if mode.is_link() {
        let target = rustix::fs::readlinkat(&around, name, Vec::new())?;
        return symlink(OsStr::from_bytes(target.to_bytes()), to);
    }
    let mut from = open_regular(&around, name)?;
    let mut file = File::create_new(to)?;
    io::copy(&mut from, &mut file)?;
    let bits = if mode == FileMode::Executable { 0o755 } else { 0o644 };
    file.set_permissions(fs::Permissions::from_mode(bits))
}
