//! The session's folder, as its warden uses it: sockets, the note of the end, and its removal.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use bastide_proto::warden::{
    DELETED_FOLDER, END_FILE, GONE_PREFIX, LOCK_FILE, OWNED_ROOT_FILE, UNWANTED_FILE, origin_mark,
};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, chmod, openat, renameat, renameat_with,
    statat, statx, unlinkat,
};
use rustix::io::Errno;

use super::exit_record::ExitRecord;
use super::limits::remove_noted;
use super::mount_points;
use super::tree::{remove_tree, remove_tree_with_last};
use crate::jail::IdMap;
use crate::sys::{Fork, exit_now, fork_into};

/// The folder of one session, held open: what lies in it is found whatever becomes of its path.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    held: OwnedFd,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { path: path.to_owned(), held })
    }

    /// A path that leads to it as long as this process holds it, whatever became of its own.
    pub(crate) fn held_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.held.as_raw_fd()))
    }

    /// Gives the caller back what commands took that are the caller: they can close the folder to its own owner.
    pub(crate) fn reopen(&self) {
        let mode = rustix::fs::fstat(&self.held).map(|found| Mode::from_raw_mode(found.st_mode));
        if mode.is_ok_and(|mode| !mode.contains(Mode::RWXU)) {
            // A descriptor that only names a folder cannot change it, but its link in `/proc` can. Whatever needs the
            // folder says that it has no right to.
            let _ = chmod(self.held_path(), Mode::RWXU);
        }
    }

    /// Makes a socket in the folder. It is bound through the held folder, because the name of a
    /// socket may have 107 bytes at most and a folder's path may be longer.
    pub(crate) fn listen(&self, name: &str) -> io::Result<UnixListener> {
        match unlinkat(&self.held, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        UnixListener::bind(format!("/proc/self/fd/{}/{name}", self.held.as_raw_fd()))
    }

    /// Connects to a socket in the folder, in the same way; a link there is not followed.
    pub(crate) fn connect(&self, name: &str) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&self.held, name, flags, Mode::empty())?;
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd()))
    }

    /// Notes how the sandbox ended, for whoever was not there to see it.
    pub(crate) fn note_end(&self, note: ExitRecord) -> io::Result<()> {
        self.reopen();
        let unfinished = format!("{END_FILE}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let mut file = fs::File::from(openat(&self.held, &unfinished, flags, mode)?);
        file.write_all(note.to_json().as_bytes())?;
        Ok(renameat(&self.held, &unfinished, &self.held, END_FILE)?)
    }

    /// Announces that the session is being removed, on the disk.
    pub(crate) fn write_tombstone(&self) -> io::Result<()> {
        self.reopen();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        fs::File::from(openat(&self.held, UNWANTED_FILE, flags, mode)?).sync_all()
    }

    /// Notes in the home that the session's lease deletes it: the note of the end would go with the folder. Whoever comes
    /// next puts it on record, and removes what is kept of the session elsewhere.
    pub(crate) fn note_deletion(&self) -> io::Result<()> {
        let (Some(home), Some(name)) = (self.path.ancestors().nth(2), self.path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let notes = home.join(DELETED_FOLDER);
        match fs::DirBuilder::new().mode(0o700).create(&notes) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // Not the id of any session until it is whole.
        let unfinished = notes.join(OsStr::from_bytes(&[b".", name.as_bytes()].concat()));
        let mut options = fs::File::options();
        let mut note =
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        note.write_all(ExitRecord::Expired.to_json().as_bytes())?;
        note.sync_all()?;
        fs::rename(&unfinished, notes.join(name))
    }

    /// Removes the folder and all that is in it. Nothing runs inside any more; `ids` are those that
    /// files in it may belong to.
    pub(crate) fn remove(&self, ids: Option<&IdMap>) -> io::Result<()> {
        // The path may lead to another folder by now, of another session; only the one that is held
        // is ours to remove.
        let is_ours = match statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => is_same(&found, &rustix::fs::fstat(&self.held)?),
            Err(Errno::NOENT) => false,
            Err(errno) => return Err(errno.into()),
        };
        if is_ours { remove(&self.path, ids) } else { Ok(()) }
    }
}

fn is_same(one: &rustix::fs::Stat, other: &rustix::fs::Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Removes a session's folder, whatever a sandbox left in it. A missing one is no failure.
pub(crate) fn remove(path: &Path, ids: Option<&IdMap>) -> io::Result<()> {
    match Folder::open(path) {
        Ok(folder) => folder.reopen(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    // What a copy of a folder says about things elsewhere is true of the original.
    if !is_copy(path)? {
        remove_noted(path)?;
        // An empty folder too many in the caller's own is no reason to keep the session.
        drop(mount_points::remove(path));
        remove_outside(path)?;
        remove_owned_root(path)?;
    }
    remove_only(path, ids)
}

/// Removes a session's folder, whatever a sandbox left in it, and nothing that is said in it about other places. A
/// missing one is no failure.
fn remove_only(path: &Path, ids: Option<&IdMap>) -> io::Result<()> {
    let Some((above, name)) = open_above(path)? else { return Ok(()) };
    // First it gets another name: from one moment to the next nobody finds a session there, and the
    // same id can be used again.
    let gone = gone_name(name);
    match renameat(&above, name, &above, gone.as_c_str()) {
        Ok(()) => remove_beneath(above.as_fd(), &gone, ids),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes a folder that is no session's own, whatever a sandbox left in it. Until it is gone it has its name: whoever finishes
/// a removal that was interrupted knows of it by that. A missing one is no failure.
pub(crate) fn remove_in_place(path: &Path, ids: Option<&IdMap>) -> io::Result<()> {
    let Some((above, name)) = open_above(path)? else { return Ok(()) };
    remove_beneath(above.as_fd(), &CString::new(name.as_bytes())?, ids)
}

/// The folder around another, if there is one, and the name of the other.
fn open_above(path: &Path) -> io::Result<Option<(OwnedFd, &OsStr)>> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(CWD, above, flags, Mode::empty()) {
        Ok(above) => Ok(Some((above, name))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Where the folder is noted, in a session's own, that lies elsewhere and goes with it.
const OUTSIDE: &str = "outside";

/// Where a folder that lies elsewhere says whose it is: what that session's lock says. Nobody inside can
/// write it.
const OWNER: &str = ".session";

/// The longest thing a lock says.
const MOST_MARK: u64 = 128;

/// Whether a session's folder is a copy of another. One that does not say was made before they did.
fn is_copy(session_dir: &Path) -> io::Result<bool> {
    let lock = match fs::File::open(session_dir.join(LOCK_FILE)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    (&lock).take(MOST_MARK).read_to_string(&mut text)?;
    Ok(!text.is_empty() && text != mark(&lock)?)
}

/// What a lock says about itself, and a copy of it does not.
fn mark(lock: &fs::File) -> io::Result<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(lock, "", AtFlags::EMPTY_PATH, wanted)?;
    let knows = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let (seconds, nanoseconds) = match knows {
        true => (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
        false => (0, 0),
    };
    Ok(origin_mark(found.stx_ino, seconds, nanoseconds))
}

/// What a session's lock says.
fn read_lock(session_dir: &Path) -> io::Result<String> {
    let mut text = String::new();
    let lock = fs::File::open(session_dir.join(LOCK_FILE))?;
    lock.take(MOST_MARK).read_to_string(&mut text)?;
    Ok(text)
}

/// Whose a folder elsewhere is; empty if it does not say.
fn owner_of(around: &Path) -> io::Result<String> {
    let mut text = String::new();
    match fs::File::open(around.join(OWNER)) {
        Ok(file) => file.take(MOST_MARK).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(text)
}

/// Makes the folder that `folder` lies in, unless that is the session's own, and notes it before. One that
/// is there is another session's if it says so.
pub(super) fn make_around(session_dir: &Path, folder: &Path) -> io::Result<()> {
    let around = folder.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if around == session_dir {
        return Ok(());
    }
    let own = read_lock(session_dir)?;
    if let Ok(found) = fs::symlink_metadata(around)
        && found.is_dir()
    {
        // Anybody can make a folder of that name among temporary files.
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        return match owner_of(around)? {
            owner if owner == own => Ok(()),
            // Made by a version that did not write it down.
            owner if owner.is_empty() && session_dir.join(OUTSIDE).exists() => {
                give_owner(around, &own)
            }
            owner if owner.is_empty() => Ok(()),
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        };
    }
    fs::write(session_dir.join(OUTSIDE), around.as_os_str().as_bytes())?;
    // It has its name only once it says whose it is: whoever is killed in between leaves one that the lock leads to.
    let unnamed = unnamed(around, &own)?;
    remove_in_place(&unnamed, None)?;
    fs::DirBuilder::new().mode(0o711).create(&unnamed)?;
    give_owner(&unnamed, &own)?;
    match renameat_with(CWD, &unnamed, CWD, around, RenameFlags::NOREPLACE) {
        // Not every file system knows how.
        Err(Errno::INVAL | Errno::NOSYS) if !around.try_exists()? => fs::rename(&unnamed, around),
        named => Ok(named?),
    }
}

/// What a folder elsewhere is called until it says whose it is. No other session has that name, a copy of this one included.
fn unnamed(around: &Path, own: &str) -> io::Result<PathBuf> {
    let name = around.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let own = own.trim_end().replace(' ', "-");
    let unnamed = [b".", name.as_bytes(), b"-", own.as_bytes()].concat();
    Ok(around.with_file_name(OsStr::from_bytes(&unnamed)))
}

fn give_owner(around: &Path, own: &str) -> io::Result<()> {
    let mut options = fs::File::options();
    let mut owner = options.write(true).create_new(true).mode(0o600).open(around.join(OWNER))?;
    owner.write_all(own.as_bytes())
}

/// Removes the folder that is noted in a session's own, if that is really its: a path alone says nothing.
fn remove_outside(session_dir: &Path) -> io::Result<()> {
    let noted = match fs::read(session_dir.join(OUTSIDE)) {
        Ok(noted) => noted,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let path = Path::new(OsStr::from_bytes(&noted));
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let own = read_lock(session_dir);
    if let Ok(own) = &own {
        remove_in_place(&unnamed(path, own)?, None)?;
    }
    // One that is gone, or never said so, is nobody's; and whoever was interrupted after it was gone may have left a
    // session without its lock.
    let owner = owner_of(path)?;
    if owner.is_empty() || owner != own? {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = openat(CWD, above, flags, Mode::empty())?;
    // Whose it is goes last: what is left of a removal that was interrupted is still found by it.
    let (name, last) = (CString::new(name.as_bytes())?, CString::new(OWNER)?);
    match remove_tree_with_last(above.as_fd(), &name, &last) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the workspace that was made elsewhere for this session, if that is what lies there.
fn remove_owned_root(session_dir: &Path) -> io::Result<()> {
    let noted = match fs::read(session_dir.join(OWNED_ROOT_FILE)) {
        Ok(noted) => noted,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // A note that was never written to its end names nothing: what it is about is still empty.
    let Some(end) = noted.iter().position(|byte| *byte == b'\n') else { return Ok(()) };
    let (text, path) = noted.split_at(end + 1);
    let path = Path::new(OsStr::from_bytes(path));
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    // It is looked at, whatever commands made of its mode.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = match openat(CWD, above, flags, Mode::empty()) {
        Ok(above) => above,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    let found = match openat(&above, name, flags, Mode::empty()) {
        Ok(found) => fs::File::from(found),
        // Gone, or nothing that was made for a session.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    if mark(&found)?.as_bytes() != text {
        return Ok(());
    }
    Ok(remove_tree(above.as_fd(), &CString::new(name.as_bytes())?)?)
}

fn remove_beneath(above: BorrowedFd<'_>, name: &CStr, ids: Option<&IdMap>) -> io::Result<()> {
    match (remove_tree(above, name), ids) {
        // Users of the sandbox have ids that are not the caller's.
        (Err(Errno::ACCESS | Errno::PERM), Some(ids @ IdMap::Subordinate { .. })) => {
            remove_as_owner(above, name, ids)
        }
        (removed, _) => Ok(removed?),
    }
}

/// Removes a tree from a user namespace in which its owners' ids exist.
fn remove_as_owner(above: BorrowedFd<'_>, name: &CStr, ids: &IdMap) -> io::Result<()> {
    let (near, far) = UnixStream::pair()?;
    let child = match fork_into(libc::CLONE_NEWUSER)? {
        Fork::Child => {
            drop(near);
            // One byte once the ids are there; the end if they never will be.
            let ready = matches!((&far).read(&mut [0]), Ok(1));
            let removed = ready && remove_tree(above, name).is_ok();
            exit_now(i32::from(!removed))
        }
        Fork::Parent(child) => child,
    };
    drop(far);
    let mapped = ids.write(child).map_err(io::Error::other).and_then(|()| (&near).write_all(&[1]));
    drop(near);
    let status = super::sandbox_base::reap(child)?;
    mapped?;
    match status.exit_status() {
        Some(0) => Ok(()),
        _ => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

fn gone_name(name: &OsStr) -> CString {
    let bytes = name.as_bytes();
    let id = bytes.strip_prefix(GONE_PREFIX.as_bytes()).unwrap_or(bytes);
    let id = id.split(|byte| *byte == b'.').next().unwrap_or(id);
    let own = format!(".{}", std::process::id());
    let name = [GONE_PREFIX.as_bytes(), id, own.as_bytes()].concat();
    CString::new(name).unwrap_or_else(|_| CStr::to_owned(c".gone-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session's folder that says which other one belongs to it, and the other.
    fn session(home: &Path) -> (PathBuf, PathBuf) {
        let (session, around) = (home.join("session"), home.join("around"));
        fs::create_dir(&session).unwrap();
        let mut lock = fs::File::create(session.join(LOCK_FILE)).unwrap();
        lock.write_all(mark(&lock).unwrap().as_bytes()).unwrap();
        make_around(&session, &around.join("work")).unwrap();
        fs::create_dir(around.join("work")).unwrap();
        fs::write(around.join("work/file"), "").unwrap();
        (session, around)
    }

    #[test]
    fn goes_with_the_folder_that_belongs_to_it() {
        let home = tempfile::tempdir().unwrap();
        let (session, around) = session(home.path());
        remove(&session, None).unwrap();
        assert!(!session.exists() && !around.exists());
    }

    #[test]
    fn is_removed_by_the_next_who_tries_where_one_was_interrupted() {
        let home = tempfile::tempdir().unwrap();
        // The other folder was gone, and of its own the lock.
        let (session, around) = session(home.path());
        fs::remove_dir_all(&around).unwrap();
        fs::remove_file(session.join(LOCK_FILE)).unwrap();
        remove(&session, None).unwrap();
        assert!(!session.exists());
    }

    #[test]
    fn goes_with_the_workspace_that_was_made_for_it_and_with_no_other() {
        let home = tempfile::tempdir().unwrap();
        for is_its in [true, false] {
            let (session, _) = session(home.path());
            let root = home.path().join("root");
            fs::create_dir(&root).unwrap();
            fs::write(root.join("file"), "").unwrap();
            let mark = mark(&fs::File::open(&root).unwrap()).unwrap();
            let mark = if is_its { mark } else { format!("1{mark}") };
            fs::write(session.join(OWNED_ROOT_FILE), format!("{mark}{}", root.display())).unwrap();
            remove(&session, None).unwrap();
            assert!(!session.exists());
            assert_eq!(root.exists(), !is_its);
        }
    }

    #[test]
    fn goes_with_what_its_maker_was_killed_over() {
        let home = tempfile::tempdir().unwrap();
        for says_whose in [false, true] {
            let (session, around) = session(home.path());
            fs::remove_dir_all(&around).unwrap();
            let own = read_lock(&session).unwrap();
            let unnamed = unnamed(&around, &own).unwrap();
            fs::create_dir(&unnamed).unwrap();
            if says_whose {
                give_owner(&unnamed, &own).unwrap();
            }
            make_around(&session, &around.join("work")).unwrap();
            assert!(around.exists() && !unnamed.exists(), "it is not made again");
            fs::rename(&around, &unnamed).unwrap();
            remove(&session, None).unwrap();
            assert!(!session.exists() && !unnamed.exists());
        }
    }

    #[test]
    fn leaves_a_folder_that_says_it_is_anothers() {
        let home = tempfile::tempdir().unwrap();
        let (session, around) = session(home.path());
        fs::write(around.join(OWNER), "another").unwrap();
        remove(&session, None).unwrap();
        assert!(!session.exists() && around.join("work/file").exists());
    }
}
