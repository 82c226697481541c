//! Putting an agent's files into a workspace, and taking them back.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use bastide::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::announce;
use super::cleanup_log::RunFolder;
use crate::agents::MaterialisedFile;
use crate::collect::{HashKind, open_folder, open_regular, open_root};

/// What is done where a file is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExistingFile {
    /// It is the user's own: the run is refused.
    Refused,
    /// It is a copy: what is there stays at the beginning.
    Extended,
}

/// Puts files into a folder, through no link. What is put into a folder of the user's is in the journal
/// first, and goes again.
pub(super) fn put(
    folder: &Path,
    files: &[MaterialisedFile],
    run: &RunFolder,
    existing: ExistingFile,
) -> Result<()> {
    for file in files {
        let failed = |error: io::Error| {
            let path = file.path.display();
            match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    Error::new(ErrorKind::Conflict, format!("{path} exists already")).with_hint(
                        "choose the mode `worktree` or `clone`, or leave out what it is for",
                    )
                }
                _ => Error::new(ErrorKind::Io, format!("cannot write {path}: {error}")),
            }
        };
        if existing == ExistingFile::Refused {
            note(folder, file, run)?;
        }
        put_one(folder, file, existing).map_err(failed)?;
    }
    Ok(())
}

fn note(folder: &Path, file: &MaterialisedFile, run: &RunFolder) -> Result<()> {
    let path = folder.join(&file.path);
    if path.symlink_metadata().is_ok() {
        // It is not ours; to write it fails.
        return Ok(());
    }
    let name = HashKind::Sha1.of_blob(&file.content).to_string();
    let around = path.ancestors().skip(1).take_while(|around| *around != folder);
    let missing: Vec<PathBuf> =
        around.filter(|around| around.symlink_metadata().is_err()).map(Path::to_owned).collect();
    announce(run, |journal| {
        journal.files.push((path, name));
        journal.folders.extend(missing);
    })
}

fn put_one(folder: &Path, file: &MaterialisedFile, existing: ExistingFile) -> io::Result<()> {
    let mut held = open_root(folder)?;
    let mut parts = file.path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        if parts.peek().is_some() {
            held = enter(&held, name)?;
            continue;
        }
        let before = match (existing, open_regular(&held, name.as_encoded_bytes())) {
            (ExistingFile::Extended, Ok(mut there)) => {
                let mut before = Vec::new();
                there.read_to_end(&mut before)?;
                rustix::fs::unlinkat(&held, name, rustix::fs::AtFlags::empty())?;
                before.extend_from_slice(b"\n");
                before
            }
            _ => Vec::new(),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut fresh = File::from(openat(&held, name, flags, Mode::from_raw_mode(0o644))?);
        fresh.write_all(&before)?;
        fresh.write_all(&file.content)?;
    }
    Ok(())
}

fn enter(held: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match mkdirat(held, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(held, name, flags, Mode::empty())?)
}

/// Removes files that still are what was put there, and the folders that were made for them, if nothing
/// else is in them. The agent may have put links in their way: behind one may be what they are copies of.
pub(super) fn clean_up(files: &[(PathBuf, String)], folders: &[PathBuf]) -> io::Result<()> {
    for (path, name) in files {
        let Some((folder, file)) = unlinked(path) else { continue };
        let Ok(mut found) = open_regular(&folder, file.as_encoded_bytes()) else { continue };
        let size = found.metadata()?.len();
        let is_same = HashKind::Sha1
            .of_stream(size, &mut found)?
            .is_some_and(|found| found.to_string() == *name);
        if is_same {
            rustix::fs::unlinkat(&folder, file, rustix::fs::AtFlags::empty())?;
        }
    }
    let mut folders: Vec<_> = folders.iter().collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.as_os_str().len()));
    for folder in folders {
        if let Some((around, name)) = unlinked(folder) {
            // One with something of somebody else's in it stays.
            let _ = rustix::fs::unlinkat(&around, name, rustix::fs::AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

/// The folder that a path lies in, reached through no link, and its name there. None, if there is no such folder.
fn unlinked(path: &Path) -> Option<(OwnedFd, &OsStr)> {
    let top = open_root(Path::new("/")).ok()?;
    // It was without links when it was written down.
    let around = path.parent()?.strip_prefix("/").ok()?;
    let around = open_folder(&top, around.as_os_str().as_encoded_bytes()).ok()?;
    Some((around, path.file_name()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn takes_nothing_back_that_lies_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        let [work, original] = ["work", "original"].map(|name| top.join(name));
        for place in [&work, &original] {
            fs::create_dir_all(place.join("skill")).unwrap();
            fs::write(place.join("skill/page"), "the same").unwrap();
        }
        fs::create_dir(original.join("empty")).unwrap();
        std::os::unix::fs::symlink(&original, work.join("skills")).unwrap();
        let name = HashKind::Sha1.of_blob(b"the same").to_string();
        let planted = [(work.join("skills/skill/page"), name.clone())];
        clean_up(&planted, &[work.join("skills/empty"), work.join("skills")]).unwrap();
        assert!(original.join("skill/page").exists() && original.join("empty").exists());
        clean_up(&[(work.join("skill/page"), name)], &[work.join("skill")]).unwrap();
        assert!(!work.join("skill").exists());
    }
}
