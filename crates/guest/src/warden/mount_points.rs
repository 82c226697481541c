//! What is made in folders of the host so that something can be mounted there inside, and removed again.
//!
//! A mount needs something to lie on. In a folder of the caller's that is the caller's own file or folder,
//! which is never touched; where there is none an empty one is made, noted in the session's folder, and
//! removed when the session has ended, by its warden or by whoever removes the session's folder. Only the
//! very file that was made is removed, and only while it is empty: anything else is the caller's.
//!
//! Sessions over one folder can mount on the same place, and the kernel takes a mount away in every mount namespace when
//! its place is removed. So whoever mounts somewhere holds it (a shared `flock`), and what is held by others stays.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use bastide_proto::boot::{InodeId, MountPoint};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid,
    chownat, flock, fstat, openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::jail::{StepContext, StepError, identity_of, make_exclusively};

/// Where they are noted, in the session's folder.
const NOTE: &str = "made-mount-points";

/// Where earlier versions noted them.
const EARLIER_NOTE: &str = "mount-points";

/// The most such a note can hold.
const MAX_NOTE: u64 = 1 << 20;

/// How names in a folder of the host are followed: not out of it, and through no symbolic link.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Something empty that is made in a folder of the host.
///
/// It is made under a name that nobody else has, noted with what the kernel knows it by, and only then given the name
/// that it is for: whenever its maker is killed, the note tells it from anything of the caller's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MadeMountPoint {
    folder: PathBuf,
    beneath: PathBuf,
    is_dir: bool,
    /// The name it is made under, in the same folder; none for what an earlier version made.
    first_name: Option<String>,
    /// Which file it is, once it was made.
    identity: Option<InodeId>,
}

/// The same, as earlier versions noted it.
#[derive(Debug, Serialize, Deserialize)]
struct EarlierMountPoint {
    folder: PathBuf,
    beneath: PathBuf,
    is_dir: bool,
    device: u64,
    inode: u64,
}

impl From<EarlierMountPoint> for MadeMountPoint {
    fn from(earlier: EarlierMountPoint) -> Self {
        let EarlierMountPoint { folder, beneath, is_dir, device, inode } = earlier;
        let identity = Some(InodeId { device, inode });
        Self { folder, beneath, is_dir, first_name: None, identity }
    }
}

/// Places that are mounted on. As long as this lives, no other session removes them.
#[derive(Debug, Default)]
pub(super) struct MountPointLocks(Vec<OwnedFd>);

/// Makes what is missing, and notes it.
pub(super) fn make(
    session_dir: &Path,
    wanted: &[MountPoint],
) -> Result<MountPointLocks, StepError> {
    let mut held = MountPointLocks::default();
    if wanted.is_empty() {
        return Ok(held);
    }
    let mut noted =
        read_note(session_dir).step(|| "read which mount points were made".to_owned())?;
    for point in wanted {
        let step = || format!("mount on {}", point.folder.join(&point.beneath).display());
        let folder = open_folder(&point.folder).step(step)?;
        if identity_of(&folder).step(step)? != point.identity {
            let step = format!("{}, whose folder is another one than was granted", step());
            return Err(StepError::from_errno(&step, libc::ESTALE));
        }
        held.0.extend(make_and_hold(session_dir, point, &folder, &mut noted).step(step)?);
    }
    Ok(held)
}

/// How often a place is made again that another session removes at the same moment.
const MOST_TRIES: usize = 100;

fn make_and_hold(
    session_dir: &Path,
    point: &MountPoint,
    folder: &OwnedFd,
    noted: &mut Vec<MadeMountPoint>,
) -> io::Result<Option<OwnedFd>> {
    for _ in 0..MOST_TRIES {
        make_one(session_dir, point, folder.try_clone()?, noted)?;
        match hold(folder, &point.beneath, FlockOperation::NonBlockingLockShared) {
            Ok(held) => return Ok(Some(held)),
            // It is being removed.
            Err(Errno::NOENT | Errno::WOULDBLOCK | Errno::STALE) => std::thread::yield_now(),
            // What nobody here may read is not ours, and nobody removes it.
            Err(Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Locks a place, if it still is what its name leads to.
fn hold(folder: &OwnedFd, beneath: &Path, how: FlockOperation) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = openat2(folder, beneath, flags, Mode::empty(), WITHIN)?;
    flock(&place, how)?;
    let again = openat2(folder, beneath, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), WITHIN)?;
    let (one, other) = (fstat(&place)?, fstat(&again)?);
    match (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        true => Ok(place),
        false => Err(Errno::STALE),
    }
}

fn make_one(
    session_dir: &Path,
    point: &MountPoint,
    mut parent: OwnedFd,
    noted: &mut Vec<MadeMountPoint>,
) -> io::Result<()> {
    let owner = fstat(&parent)?;
    let mut beneath = PathBuf::new();
    let mut names = point.beneath.components().peekable();
    while let Some(part) = names.next() {
        let Component::Normal(name) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        beneath.push(name);
        let is_dir = names.peek().is_some() || point.is_dir;
        if !is_there(&parent, name, is_dir)? {
            let first_name = format!(".bastide-{:016x}", random()?);
            let (folder, beneath) = (point.folder.clone(), beneath.clone());
            let first_name = Some(first_name);
            noted.push(MadeMountPoint { folder, beneath, is_dir, first_name, identity: None });
            make_noted(session_dir, &parent, name, &owner, noted)?;
        }
        if names.peek().is_some() {
            parent = enter(&parent, Path::new(name))?;
        }
    }
    Ok(())
}

/// Whether something of the kind is there; of another kind nothing may be.
fn is_there(parent: &OwnedFd, name: &OsStr, is_dir: bool) -> Result<bool, Errno> {
    let wanted = if is_dir { FileType::Directory } else { FileType::RegularFile };
    match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => match FileType::from_raw_mode(found.st_mode) {
            kind if kind == wanted => Ok(true),
            _ if is_dir => Err(Errno::NOTDIR),
            _ => Err(Errno::EXIST),
        },
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes the last one that was noted: under its first name, and once that is noted, under its own.
fn make_noted(
    session_dir: &Path,
    parent: &OwnedFd,
    name: &OsStr,
    owner: &Stat,
    noted: &mut [MadeMountPoint],
) -> io::Result<()> {
    write_note(session_dir, noted)?;
    let Some(made) = noted.last_mut() else { return Ok(()) };
    let Some(first_name) = made.first_name.clone() else { return Ok(()) };
    make_exclusively(parent, first_name.as_str(), made.is_dir)?;
    if rustix::process::geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        chownat(parent, first_name.as_str(), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    let found = statat(parent, first_name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
    made.identity = Some(InodeId { device: found.st_dev, inode: found.st_ino });
    write_note(session_dir, noted)?;
    match renameat_with(parent, first_name.as_str(), parent, name, RenameFlags::NOREPLACE) {
        // Somebody else made one meanwhile, and that one will do; or does not, as is seen when it is mounted on.
        Err(Errno::EXIST) => Ok(()),
        // Some file systems know only the rename that replaces. Nothing was there a moment ago.
        Err(Errno::INVAL) => Ok(renameat(parent, first_name.as_str(), parent, name)?),
        renamed => Ok(renamed?),
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
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
    for note in [NOTE, EARLIER_NOTE] {
        match fs::remove_file(session_dir.join(note)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Removes it, by either of its names.
fn remove_one(made: &MadeMountPoint) -> io::Result<()> {
    let first_name = made.first_name.as_ref().map(OsStr::new);
    for name in made.beneath.file_name().into_iter().chain(first_name) {
        match remove_named(made, name) {
            Ok(())
            | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Removes it, if it is still what was made: a caller's file in its place stays, and so does one that
/// somebody wrote to.
fn remove_named(made: &MadeMountPoint, name: &OsStr) -> Result<(), Errno> {
    let Some(parent) = find(made, name)? else { return Ok(()) };
    // Locked until it is gone: whoever wants to mount there sees that.
    let _alone = match hold(&parent, Path::new(name), FlockOperation::NonBlockingLockExclusive) {
        Ok(held) => held,
        // Another session has something mounted there.
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let flags = if made.is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    match unlinkat(&parent, name, flags) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        removed => removed,
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
    let is_it = match made.identity {
        Some(identity) => (found.st_dev, found.st_ino) == (identity.device, identity.inode),
        // Its maker did not come to say which it is. Nobody else has such a name.
        None => made.first_name.as_ref().is_some_and(|first_name| name == first_name.as_str()),
    };
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
    let earlier: Vec<EarlierMountPoint> = read_list(&session_dir.join(EARLIER_NOTE))?;
    let noted: Vec<MadeMountPoint> = read_list(&session_dir.join(NOTE))?;
    Ok(earlier.into_iter().map(MadeMountPoint::from).chain(noted).collect())
}

fn read_list<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_NOTE).read_to_end(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    bastide_proto::decode(&text).map_err(io::Error::other)
}

/// Writes the note whole, to the disk: one that is cut short or lost would hide what was made.
fn write_note(session_dir: &Path, noted: &[MadeMountPoint]) -> io::Result<()> {
    let text = bastide_proto::encode(&noted.to_vec()).map_err(io::Error::other)?;
    let unfinished = session_dir.join(format!("{NOTE}.new"));
    let mut file = File::create(&unfinished)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(&unfinished, session_dir.join(NOTE))?;
    File::open(session_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(folder: &Path, beneath: &str, is_dir: bool) -> MountPoint {
        let identity = identity_of(&open_folder(folder).unwrap()).unwrap();
        MountPoint { folder: folder.to_owned(), identity, beneath: PathBuf::from(beneath), is_dir }
    }

    /// Every name in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn makes_nothing_that_it_cannot_note() {
        let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // Every write there fails for want of room.
        let unfinished = session.path().join(format!("{NOTE}.new"));
        std::os::unix::fs::symlink("/dev/full", unfinished).unwrap();
        for (beneath, is_dir) in [("x/y", true), ("file", false)] {
            assert!(make(session.path(), &[point(host.path(), beneath, is_dir)]).is_err());
        }
        assert_eq!(names(host.path()), Vec::<String>::new());
    }

    /// Killed after each step of making one.
    #[test]
    fn finds_what_a_maker_that_was_killed_had_made() {
        for is_dir in [true, false] {
            for steps in 0..4 {
                let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
                let first = ".bastide-0123".to_owned();
                let mut made = MadeMountPoint {
                    folder: host.path().to_owned(),
                    beneath: PathBuf::from("wanted"),
                    is_dir,
                    first_name: Some(first.clone()),
                    identity: None,
                };
                write_note(session.path(), std::slice::from_ref(&made)).unwrap();
                let parent = open_folder(host.path()).unwrap();
                if steps >= 1 {
                    make_exclusively(&parent, first.as_str(), is_dir).unwrap();
                }
                if steps >= 2 {
                    let found = statat(&parent, first.as_str(), AtFlags::empty()).unwrap();
                    made.identity = Some(InodeId { device: found.st_dev, inode: found.st_ino });
                    write_note(session.path(), std::slice::from_ref(&made)).unwrap();
                }
                if steps >= 3 {
                    renameat(&parent, first.as_str(), &parent, "wanted").unwrap();
                } else {
                    // The caller's own, made by chance meanwhile.
                    make_exclusively(&parent, "wanted", is_dir).unwrap();
                }
                remove(session.path()).unwrap();
                let left = if steps >= 3 { vec![] } else { vec!["wanted".to_owned()] };
                assert_eq!(names(host.path()), left, "after {steps} steps");
                assert!(!session.path().join(NOTE).exists());
            }
        }
    }

    #[test]
    fn removes_what_an_earlier_version_made() {
        let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(host.path().join("made")).unwrap();
        let made = identity_of(&open_folder(&host.path().join("made")).unwrap()).unwrap();
        let earlier = EarlierMountPoint {
            folder: host.path().to_owned(),
            beneath: PathBuf::from("made"),
            is_dir: true,
            device: made.device,
            inode: made.inode,
        };
        let text = bastide_proto::encode(&vec![earlier]).unwrap();
        fs::write(session.path().join(EARLIER_NOTE), text).unwrap();
        remove(session.path()).unwrap();
        assert_eq!(names(host.path()), Vec::<String>::new());
        assert_eq!(names(session.path()), Vec::<String>::new());
    }

    #[test]
    fn makes_nothing_in_a_folder_that_took_the_place_of_another() {
        let (session, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [granted, other] = ["granted", "other"].map(|name| host.path().join(name));
        fs::create_dir(&granted).unwrap();
        fs::create_dir(&other).unwrap();
        let wanted = [point(&granted, "x", true)];
        fs::remove_dir(&granted).unwrap();
        fs::rename(&other, &granted).unwrap();
        assert!(make(session.path(), &wanted).is_err());
        assert_eq!(names(&granted), Vec::<String>::new());
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
        let left = names(host.path());
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

    /// Two sessions over one folder: the kernel would take the second one's mount away with its place.
    #[test]
    fn leaves_a_place_that_another_session_mounts_on() {
        let host = tempfile::tempdir().unwrap();
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (beneath, is_dir) in [("folder", true), ("file", false)] {
            let wanted = [point(host.path(), beneath, is_dir)];
            let ours = make(first.path(), &wanted).unwrap();
            let theirs = make(second.path(), &wanted).unwrap();
            drop(ours);
            remove(first.path()).unwrap();
            assert!(host.path().join(beneath).exists(), "{beneath}");
            drop(theirs);
            remove(second.path()).unwrap();
        }
    }
}
