//! What is made in folders of the host so that something can be mounted there inside, and removed again.
//!
//! A mount needs something to lie on. In a folder of the caller's that is the caller's own file or folder,
//! which is never touched; where there is none an empty one is made, noted in the session's folder, and
//! removed when the session has ended, by its warden or by whoever removes the session's folder. Only the
//! very file that was made is removed, and only while it is empty: anything else is the caller's.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use bastide_proto::boot::MountPoint;
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fstat, openat, openat2, statat,
    unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::jail::{StepContext, StepError, make_exclusively};

/// Where they are noted, in the session's folder.
const NOTE: &str = "mount-points";

/// The most such a note can hold.
const MAX_NOTE: u64 = 1 << 20;

/// How names in a folder of the host are followed: not out of it, and through no symbolic link.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Something empty that was made in a folder of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MadeMountPoint {
    folder: PathBuf,
    beneath: PathBuf,
    is_dir: bool,
    device: u64,
    inode: u64,
}

/// Makes what is missing, and notes it.
pub(super) fn make(session_dir: &Path, wanted: &[MountPoint]) -> Result<(), StepError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut noted =
        read_note(session_dir).step(|| "read which mount points were made".to_owned())?;
    for point in wanted {
        let step = || format!("mount on {}", point.folder.join(&point.beneath).display());
        make_one(session_dir, point, &mut noted).step(step)?;
    }
    Ok(())
}

fn make_one(
    session_dir: &Path,
    point: &MountPoint,
    noted: &mut Vec<MadeMountPoint>,
) -> io::Result<()> {
    let mut parent = open_folder(&point.folder)?;
    let owner = fstat(&parent)?;
    let mut beneath = PathBuf::new();
    let mut names = point.beneath.components().peekable();
    while let Some(part) = names.next() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        beneath.push(name);
        let is_dir = names.peek().is_some() || point.is_dir;
        if make_exclusively(&parent, name, is_dir)? {
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
                chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            let found = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let (device, inode) = (found.st_dev, found.st_ino);
            let (folder, beneath) = (point.folder.clone(), beneath.clone());
            noted.push(MadeMountPoint { folder, beneath, is_dir, device, inode });
            write_note(session_dir, noted)?;
        }
        if names.peek().is_some() {
            parent = enter(&parent, Path::new(name))?;
        }
    }
    Ok(())
}

/// Removes what was made for a session, once nothing is mounted there any more. What cannot be removed
/// now stays noted.
pub(super) fn remove(session_dir: &Path) -> io::Result<()> {
    let mut noted = read_note(session_dir)?;
    if noted.is_empty() {
        return Ok(());
    }
    // What lies in something else was made after it.
    while let Some(made) = noted.last() {
        remove_one(made)?;
        noted.pop();
    }
    fs::remove_file(session_dir.join(NOTE))
}

/// Removes it, if it is still what was made: a caller's file in its place stays, and so does one that
/// somebody wrote to.
fn remove_one(made: &MadeMountPoint) -> io::Result<()> {
    let Some(name) = made.beneath.file_name() else { return Ok(()) };
    match find(made, name) {
        Ok(Some(parent)) => {
            let flags = if made.is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match unlinkat(&parent, name, flags) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                Err(errno) => Err(errno.into()),
            }
        }
        Ok(None) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// The folder it lies in, if it is still there and empty.
fn find(made: &MadeMountPoint, name: &OsStr) -> Result<Option<OwnedFd>, Errno> {
    let folder = open_folder(&made.folder)?;
    let parent = match made.beneath.parent().filter(|above| !above.as_os_str().is_empty()) {
        Some(above) => enter(&folder, above)?,
        None => folder,
    };
    let found = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_it = (found.st_dev, found.st_ino) == (made.device, made.inode);
    Ok((is_it && (made.is_dir || found.st_size == 0)).then_some(parent))
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(rustix::fs::CWD, path, flags, Mode::empty())
}

fn enter(folder: &OwnedFd, beneath: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(folder, beneath, flags, Mode::empty(), WITHIN)
}

fn read_note(session_dir: &Path) -> io::Result<Vec<MadeMountPoint>> {
    let mut text = Vec::new();
    match File::open(session_dir.join(NOTE)) {
        Ok(file) => file.take(MAX_NOTE).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    bastide_proto::decode(&text).map_err(io::Error::other)
}

/// Writes the note whole: one that is cut short would hide what was made.
fn write_note(session_dir: &Path, noted: &[MadeMountPoint]) -> io::Result<()> {
    let text = bastide_proto::encode(&noted.to_vec()).map_err(io::Error::other)?;
    let unfinished = session_dir.join(format!("{NOTE}.new"));
    fs::write(&unfinished, text)?;
    fs::rename(&unfinished, session_dir.join(NOTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(folder: &Path, beneath: &str, is_dir: bool) -> MountPoint {
        MountPoint { folder: folder.to_owned(), beneath: PathBuf::from(beneath), is_dir }
    }

    #[test]
    fn makes_what_is_missing_and_removes_nothing_else() {
        let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(host.path().join("there")).unwrap();
        fs::write(host.path().join("there/file"), "kept").unwrap();
        let wanted = [
            point(host.path(), "there/file", false),
            point(host.path(), "there/new", false),
            point(host.path(), "a/b/c", true),
            point(host.path(), "written", false),
            point(host.path(), "used", true),
            point(host.path(), "replaced", false),
        ];
        make(session.path(), &wanted).unwrap();
        // Once more, as after a warden that was killed: nothing more is made or forgotten.
        make(session.path(), &wanted).unwrap();
        for made in ["there/new", "a/b/c", "written", "used", "replaced"] {
            assert!(host.path().join(made).exists(), "{made}");
        }
        fs::write(host.path().join("written"), "somebody's").unwrap();
        fs::write(host.path().join("used/file"), "somebody's").unwrap();
        fs::write(host.path().join("other"), "").unwrap();
        fs::rename(host.path().join("other"), host.path().join("replaced")).unwrap();
        remove(session.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(host.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, ["replaced", "there", "used", "written"]);
        assert_eq!(fs::read_to_string(host.path().join("there/file")).unwrap(), "kept");
        assert!(!host.path().join("there/new").exists());
        assert!(!session.path().join(NOTE).exists());
        remove(session.path()).unwrap();
    }

    #[test]
    fn mounts_on_nothing_of_another_kind_and_through_no_link() {
        let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(host.path().join("file"), "kept").unwrap();
        fs::create_dir(host.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("folder", host.path().join("link")).unwrap();
        for (beneath, is_dir) in
            [("file", true), ("folder", false), ("link", true), ("link/x", true), ("../x", true)]
        {
            let wanted = [point(host.path(), beneath, is_dir)];
            assert!(make(session.path(), &wanted).is_err(), "{beneath}");
        }
        assert_eq!(fs::read_dir(host.path().join("folder")).unwrap().count(), 0);
    }
}
