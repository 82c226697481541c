//! Which mounts files may be in: those that were there before the first command ran, and those the host has made since.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{PoisonError, RwLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, fstat, statx};
use rustix::io::Errno;

use super::{Root, names};

/// The kernel's name for a mount that is never given to another one (Linux 6.8).
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The longest list of mounts that is read.
const MAX_LIST: u64 = 4 << 20;

/// What is known of a file that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) kind: FileType,
    pub(crate) mode: u32,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Which mount it was reached through.
    mount: u64,
}

impl FileIdentity {
    /// Whether both are the same file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether both were reached through the same mount.
    pub(crate) fn is_in_mount_of(&self, other: &Self) -> bool {
        self.mount == other.mount
    }
}

/// Looks at a file that is held, in one call where the kernel can.
pub(crate) fn stat_held(file: impl AsFd) -> Result<FileIdentity, Errno> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | UNIQUE_MOUNT_ID;
    let seen = match statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, wanted) {
        Ok(seen) => seen,
        Err(Errno::NOSYS | Errno::PERM) => return fstat_held(file),
        Err(errno) => return Err(errno),
    };
    let device = rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
    let knows_mount = seen.stx_mask & (StatxFlags::MNT_ID | UNIQUE_MOUNT_ID).bits() != 0;
    let mount = if knows_mount { seen.stx_mnt_id } else { mount_by_proc(&file).unwrap_or(device) };
    Ok(FileIdentity {
        kind: FileType::from_raw_mode(u32::from(seen.stx_mode)),
        mode: u32::from(seen.stx_mode) & 0o7777,
        device,
        inode: seen.stx_ino,
        size: seen.stx_size,
        mount,
    })
}

fn fstat_held(file: impl AsFd) -> Result<FileIdentity, Errno> {
    let seen: Stat = fstat(&file)?;
    Ok(FileIdentity {
        kind: FileType::from_raw_mode(seen.st_mode),
        mode: seen.st_mode & 0o7777,
        device: seen.st_dev,
        inode: seen.st_ino,
        size: u64::try_from(seen.st_size).unwrap_or(0),
        mount: mount_by_proc(&file).unwrap_or(seen.st_dev),
    })
}

/// The mount of a held file as older kernels tell it. Where there is no telling, its device has to
/// do.
fn mount_by_proc(file: &impl AsFd) -> Option<u64> {
    let path = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    line.trim().parse().ok()
}

/// The mounts that may be entered.
#[derive(Debug)]
pub(super) struct Mounts {
    known: RwLock<HashSet<u64>>,
    /// Those of them that show what would be there without them: folders that are mounted on themselves.
    pins: HashSet<u64>,
}

impl Mounts {
    /// Learns which mounts there are in the roots now.
    pub(super) fn learn(roots: &[Root]) -> io::Result<Self> {
        let (mut known, mut pins) = (HashSet::new(), HashSet::new());
        for root in roots {
            known.insert(stat_held(&root.held)?.mount);
        }
        let list = mount_list()?;
        let lines: Vec<MountLine> =
            list.split(|byte| *byte == b'\n').filter_map(MountLine::parse).collect();
        for line in &lines {
            let at = names(&line.point);
            if !roots.iter().any(|root| at.starts_with(&root.names)) {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // What cannot be looked at cannot be entered either.
            if let Ok(held) = rustix::fs::open(line.point.as_slice(), flags, Mode::empty()) {
                let mount = stat_held(&held)?.mount;
                known.insert(mount);
                if lines.iter().any(|parent| line.is_pin_in(parent)) {
                    pins.insert(mount);
                }
            }
        }
        Ok(Self { known: RwLock::new(known), pins })
    }

    /// Whether a file is part of the same tree as the folder it lies in, and not of something mounted there.
    pub(super) fn continues(&self, node: &FileIdentity, above: &FileIdentity) -> bool {
        node.is_in_mount_of(above) || self.pins.contains(&node.mount)
    }

    /// Adds the mount that a file was reached through.
    pub(super) fn add(&self, node: &FileIdentity) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(node.mount);
    }

    /// Whether a file is in one of them.
    pub(super) fn knows(&self, node: &FileIdentity) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains(&node.mount)
    }
}

/// Everything that is mounted, in the kernel's words.
fn mount_list() -> io::Result<Vec<u8>> {
    let mut list = Vec::new();
    match File::open("/proc/self/mountinfo") {
        Ok(file) => file.take(MAX_LIST).read_to_end(&mut list)?,
        // Without a `/proc` there are only the roots themselves.
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(list)
}

/// What a line says of a mount.
#[derive(Debug)]
struct MountLine<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    device: &'a [u8],
    /// What of the file system is mounted.
    root: Vec<u8>,
    /// Where.
    point: Vec<u8>,
    options: &'a [u8],
}

impl<'a> MountLine<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let (id, parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        Some(Self { id, parent, device, root, point, options: fields.next()? })
    }

    /// Whether it shows what is in its place of `parent` anyway, in the same way.
    fn is_pin_in(&self, parent: &Self) -> bool {
        let beneath = |path: &[u8], top: &[u8]| -> Option<Vec<Vec<u8>>> {
            names(path).strip_prefix(names(top).as_slice()).map(<[_]>::to_vec)
        };
        let place = beneath(&self.point, &parent.point);
        (self.parent, self.device, self.options) == (parent.id, parent.device, parent.options)
            && place.is_some()
            && place == beneath(&self.root, &parent.root)
    }
}

/// A field of a line; blanks in it are written as octal numbers.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut point = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        if let (b'\\', Some(digits)) = (first, tail.get(..3))
            && let Ok(digits) = std::str::from_utf8(digits)
            && let Ok(byte) = u8::from_str_radix(digits, 8)
        {
            point.push(byte);
            rest = &tail[3..];
        } else {
            point.push(*first);
            rest = tail;
        }
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_where_something_is_mounted() {
        let cases: &[(&[u8], Option<&[u8]>)] = &[
            (b"36 35 98:0 / /mnt/a rw - ext4 /dev/x rw", Some(b"/mnt/a")),
            (b"36 35 98:0 / /mnt/a\\040b\\134 rw - ext4", Some(b"/mnt/a b\\")),
            (b"36 35 98:0 / /mnt/\\9 rw - ext4", Some(b"/mnt/\\9")),
            (b"36 35 98:0", None),
            (b"", None),
        ];
        for (line, want) in cases {
            let point = MountLine::parse(line).map(|line| line.point);
            assert_eq!(point.as_deref(), *want, "{line:?}");
        }
    }

    #[test]
    fn knows_a_folder_that_is_mounted_on_itself() {
        let line = |text: &'static str| MountLine::parse(text.as_bytes()).unwrap();
        let around = line("40 1 8:1 /home/ws /ws rw,nosuid - ext4 /dev/x rw");
        let cases = [
            ("41 40 8:1 /home/ws/a /ws/a rw,nosuid - ext4 /dev/x rw", true),
            ("41 40 8:1 /home/ws/a/b /ws/a/b rw,nosuid - ext4 /dev/x rw", true),
            ("41 40 8:1 /home/ws/b /ws/a rw,nosuid - ext4 /dev/x rw", false),
            ("41 40 8:1 /home/ws/a /ws/a ro,nosuid - ext4 /dev/x rw", false),
            ("41 40 8:2 /home/ws/a /ws/a rw,nosuid - ext4 /dev/y rw", false),
            ("41 39 8:1 /home/ws/a /ws/a rw,nosuid - ext4 /dev/x rw", false),
            ("41 40 8:1 /elsewhere /elsewhere rw,nosuid - ext4 /dev/x rw", false),
        ];
        for (text, want) in cases {
            assert_eq!(line(text).is_pin_in(&around), want, "{text}");
        }
    }

    #[test]
    fn tells_the_same_with_and_without_the_newer_call() {
        let file = tempfile::tempfile().unwrap();
        let (new, old) = (stat_held(&file).unwrap(), fstat_held(&file).unwrap());
        assert_eq!(FileIdentity { mount: 0, ..new }, FileIdentity { mount: 0, ..old });
    }
}
