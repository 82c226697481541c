//! Removing a tree that a sandbox made.
//!
//! It may be deeper than there are descriptors or stack, and its folders may forbid their own owner to
//! look into them. Nobody lives in it any more; at most somebody else removes it too, such as a sweep that
//! came upon it, so what is gone meanwhile is what was wanted.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, chmod, fchmod, fstat, openat, renameat_with, unlinkat,
};
use rustix::io::{Errno, Result};

/// How many folders are held open at a time. What lies deeper is moved up and removed from there.
const DEPTH: usize = 64;

/// How many looks may find nothing in folders that are not empty.
const LOOKS: usize = 100;

/// Removes the folder `name` of `above` and everything in it, following no link.
pub(super) fn remove_tree(above: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    let mut levels: Vec<_> = Level::enter(above, name)?.into_iter().collect();
    let (mut moved, mut looks) = (0_u64, 0);
    while let Some(level) = levels.last_mut() {
        match level.clear()? {
            TreeEntry::Nothing => {
                let Some(level) = levels.pop() else { break };
                let holder = levels.last().map_or(above, |below| below.folder.as_fd());
                match unlinkat(holder, &level.name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // Entries may be passed over while others are removed, and those moved up may
                    // not have been seen. As long as each pass removes something, this ends. What
                    // somebody else removes meanwhile may hide others from a look.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if level.progressed || looks < LOOKS => {
                        looks += usize::from(!level.progressed);
                        levels.extend(Level::enter(holder, &level.name)?);
                    }
                    Err(errno) => return Err(errno),
                }
            }
            TreeEntry::Folder(name) if levels.len() < DEPTH => {
                let Some(level) = levels.last() else { break };
                let deeper = Level::enter(level.folder.as_fd(), &name)?;
                levels.extend(deeper);
            }
            TreeEntry::Folder(name) => {
                let (Some(top), Some(level)) = (levels.first(), levels.last()) else { break };
                // A folder that changes its parent is written to, so it has to allow that.
                let opened = open_folder(level.folder.as_fd(), &name).map(drop);
                let (from, to) = (level.folder.as_fd(), top.folder.as_fd());
                match opened.and_then(|()| move_up(from, &name, to, &mut moved)) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(errno),
                }
                if let Some(top) = levels.first_mut() {
                    top.progressed = true;
                }
            }
        }
    }
    Ok(())
}

/// Removes the folder `name` of `above`; of what lies in the folder itself, `last` goes after everything else, so that
/// whoever is interrupted leaves a folder that still has it.
pub(super) fn remove_tree_with_last(above: BorrowedFd<'_>, name: &CStr, last: &CStr) -> Result<()> {
    let Some(mut level) = Level::enter(above, name)? else { return Ok(()) };
    while let TreeEntry::Folder(name) = level.clear_but(Some(last))? {
        remove_tree(level.folder.as_fd(), &name)?;
    }
    remove_tree(above, name)
}

/// A folder on the way down.
struct Level {
    name: CString,
    folder: OwnedFd,
    entries: Dir,
    progressed: bool,
}

enum TreeEntry {
    Nothing,
    /// A folder that is not empty.
    Folder(CString),
}

impl Level {
    /// `None` if there is no such folder any more.
    fn enter(above: BorrowedFd<'_>, name: &CStr) -> Result<Option<Self>> {
        let folder = match open_folder(above, name) {
            Err(Errno::NOENT) => return Ok(None),
            folder => folder?,
        };
        let entries = Dir::read_from(&folder)?;
        Ok(Some(Self { name: name.to_owned(), folder, entries, progressed: false }))
    }

    /// Removes what can be removed at once, up to the first folder with something in it.
    fn clear(&mut self) -> Result<TreeEntry> {
        self.clear_but(None)
    }

    /// The same, and leaves what has the name `kept`.
    fn clear_but(&mut self, kept: Option<&CStr>) -> Result<TreeEntry> {
        while let Some(entry) = self.entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." || Some(name) == kept {
                continue;
            }
            match unlinkat(&self.folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {
                    self.progressed = true;
                    continue;
                }
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(errno) => return Err(errno),
            }
            self.progressed = true;
            match unlinkat(&self.folder, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    return Ok(TreeEntry::Folder(name.to_owned()));
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(TreeEntry::Nothing)
    }
}

/// Opens a folder so that it can be emptied, whatever it allows its owner.
fn open_folder(above: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(above, name, flags, Mode::empty());
    let folder = match opened {
        Err(Errno::ACCESS) => {
            let path = flags | OFlags::PATH;
            let held = openat(above, name, path, Mode::empty())?;
            // A descriptor that only names a folder cannot change it, but its link in `/proc` can.
            chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), Mode::RWXU)?;
            openat(above, name, flags, Mode::empty())?
        }
        opened => opened?,
    };
    if !Mode::from_raw_mode(fstat(&folder)?.st_mode).contains(Mode::RWXU) {
        fchmod(&folder, Mode::RWXU)?;
    }
    Ok(folder)
}

fn move_up(from: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>, moved: &mut u64) -> Result<()> {
    loop {
        *moved += 1;
        let free = format!(".deep-{moved}");
        match renameat_with(from, name, top, free, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            renamed => return renamed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use rustix::fs::CWD;

    use super::*;

    /// An empty folder that is gone after the test, whatever the test did to it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bastide-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn held(&self) -> OwnedFd {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, &self.0, flags, Mode::empty()).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn removes_what_forbids_it_and_follows_no_link() {
        let scratch = Scratch::new("forbidding-tree");
        let kept = scratch.0.join("kept");
        fs::create_dir_all(&kept).unwrap();
        fs::write(kept.join("file"), "kept").unwrap();
        let closed = scratch.0.join("tree/closed/deeper");
        fs::create_dir_all(&closed).unwrap();
        fs::write(closed.join("file"), "").unwrap();
        symlink(&kept, scratch.0.join("tree/link")).unwrap();
        for folder in ["tree/closed/deeper", "tree/closed"] {
            let mode = fs::Permissions::from_mode(0o000);
            fs::set_permissions(scratch.0.join(folder), mode).unwrap();
        }
        remove_tree(scratch.held().as_fd(), c"tree").unwrap();
        assert!(!scratch.0.join("tree").exists());
        assert_eq!(fs::read(kept.join("file")).unwrap(), b"kept");
    }

    #[test]
    fn removes_all_but_the_last_first() {
        let scratch = Scratch::new("ordered-tree");
        fs::create_dir_all(scratch.0.join("tree/folder/deeper")).unwrap();
        for file in ["tree/last", "tree/file", "tree/folder/last", "tree/folder/deeper/file"] {
            fs::write(scratch.0.join(file), "").unwrap();
        }
        let held = scratch.held();
        remove_tree_with_last(held.as_fd(), c"tree", c"last").unwrap();
        assert!(!scratch.0.join("tree").exists());
        remove_tree_with_last(held.as_fd(), c"tree", c"last").unwrap();
    }

    #[test]
    fn removes_a_tree_deeper_than_there_are_descriptors() {
        let scratch = Scratch::new("deep-tree");
        let mut folder = scratch.held();
        let mut name = c"tree";
        for _ in 0..3000 {
            rustix::fs::mkdirat(&folder, name, Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&folder, c"beside", Mode::RWXU).unwrap();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            folder = openat(&folder, name, flags, Mode::empty()).unwrap();
            name = c"down";
        }
        remove_tree(scratch.held().as_fd(), c"tree").unwrap();
        assert!(!scratch.0.join("tree").exists());
    }

    #[test]
    fn goes_on_though_somebody_else_removes_it_too() {
        let scratch = Scratch::new("shared-tree");
        for _ in 0..4 {
            for number in 0..60 {
                let folder = scratch.0.join(format!("tree/{}/{}", number / 6, number % 6));
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("file"), "").unwrap();
            }
            let held = scratch.held();
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| remove_tree(held.as_fd(), c"tree").unwrap());
                }
            });
            assert!(!scratch.0.join("tree").exists());
        }
    }

    #[test]
    fn removes_a_folder_with_many_entries() {
        let scratch = Scratch::new("wide-tree");
        fs::create_dir(scratch.0.join("tree")).unwrap();
        for number in 0..5000 {
            fs::write(scratch.0.join(format!("tree/{number}")), "").unwrap();
        }
        remove_tree(scratch.held().as_fd(), c"tree").unwrap();
        assert!(!scratch.0.join("tree").exists());
    }
}
