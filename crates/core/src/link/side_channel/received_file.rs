//! A file whose descriptor came from a guest.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, FileType, OFlags, StatFs, StatxFlags, fcntl_getfl, fstatfs, statfs, statx,
};

use super::UntrustedFd;
/// How long the disk may take for one piece.
const PIECE_DEADLINE: Duration = Duration::from_secs(30);

/// How much is read or written at a time.
const CHUNK: usize = 8 << 20;

/// How much is worth a second thread: to be given the memory, page by page, takes longer than to read.
const LARGE: usize = 2 * CHUNK;

/// File systems that answer by themselves: no process of anybody's stands behind them, and what
/// they call a regular file is one.
const FILE_SYSTEMS: [(&str, u64); 8] = [
    ("ext2, ext3, ext4", 0xef53),
    ("btrfs", 0x9123_683e),
    ("xfs", 0x5846_5342),
    ("tmpfs", 0x0102_1994),
    ("f2fs", 0xf2f5_2010),
    ("zfs", 0x2fc1_2fc1),
    ("bcachefs", 0xca45_1a4e),
    ("overlayfs", 0x794c_7630),
];

/// What a descriptor must be good for, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading.
    Read,
    /// Writing.
    Write,
}

/// A file that passed every check.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedFile(Arc<File>);

impl ReceivedFile {
    /// How much to read or write at a time.
    pub(crate) const CHUNK: usize = CHUNK;

    /// Checks a descriptor; an error says what is wrong with it.
    ///
    /// Nothing asked here waits for anybody: the flags are the kernel's own, and the file's kind and
    /// device are what the kernel knows already. Only a file on a known device is asked for more.
    pub(crate) fn check(
        stranger: UntrustedFd,
        access: Access,
        devices: &[u64],
    ) -> Result<Self, &'static str> {
        let descriptor = stranger.get().ok_or("it is gone")?;
        let flags = fcntl_getfl(descriptor).map_err(|_| "it cannot be looked at")?;
        let wanted = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
        };
        if flags.contains(OFlags::PATH) || flags.intersection(OFlags::ACCMODE) != wanted {
            return Err("it is not open for what was asked");
        }
        let harmless = OFlags::ACCMODE | OFlags::NONBLOCK | OFlags::LARGEFILE | OFlags::NOFOLLOW;
        if !harmless.contains(flags) {
            return Err("it is open in an unusual way");
        }
        let asked = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let seen = statx(descriptor, c"", asked, StatxFlags::TYPE);
        let seen = seen.map_err(|_| "it cannot be looked at")?;
        if FileType::from_raw_mode(u32::from(seen.stx_mode)) != FileType::RegularFile {
            return Err("it is not a regular file");
        }
        let device = rustix::fs::makedev(seen.stx_dev_major, seen.stx_dev_minor);
        if !devices.contains(&device) {
            return Err("it is not on a device of the session");
        }
        let system = fstatfs(descriptor).map_err(|_| "its file system cannot be looked at")?;
        if !is_usual(&system) {
            return Err("it is on an unusual file system");
        }
        let descriptor = stranger.trusted().ok_or("it is gone")?;
        Ok(Self(Arc::new(File::from(descriptor))))
    }

    /// The file itself, to be read or written by position on a thread that may block.
    pub(crate) fn file(&self) -> Arc<File> {
        Arc::clone(&self.0)
    }

    /// Reads up to `most` bytes from `offset`, but not very many; fewer at the end of the file.
    pub(crate) async fn read(&self, offset: u64, most: usize) -> io::Result<Bytes> {
        self.read_whole(offset, most.min(CHUNK)).await
    }

    /// Reads up to `most` bytes from `offset`; fewer at the end of the file.
    pub(crate) async fn read_whole(&self, offset: u64, most: usize) -> io::Result<Bytes> {
        let file = Arc::clone(&self.0);
        let chunks = u32::try_from(most / CHUNK + 1).unwrap_or(u32::MAX);
        within(PIECE_DEADLINE.saturating_mul(chunks), move || {
            let mut whole = vec![0; most];
            let length = match most < LARGE {
                true => fill(&file, &mut whole, offset)?,
                false => fill_by_halves(&file, &mut whole, offset)?,
            };
            whole.truncate(length);
            Ok(Bytes::from(whole))
        })
        .await
    }

    /// Writes all of `data` at `offset`.
    pub(crate) async fn write(&self, offset: u64, data: Bytes) -> io::Result<()> {
        let file = Arc::clone(&self.0);
        within(PIECE_DEADLINE, move || file.write_all_at(&data, offset)).await
    }
}

fn is_usual(system: &StatFs) -> bool {
    let kind = u64::from_ne_bytes(system.f_type.to_ne_bytes());
    FILE_SYSTEMS.iter().any(|(_, known)| *known == kind)
}

/// The device of a file or folder, if descriptors of files on it are taken.
pub(crate) fn passable_device(path: &Path) -> Option<u64> {
    let system = statfs(path).ok()?;
    let metadata = std::fs::metadata(path).ok()?;
    is_usual(&system).then(|| metadata.dev())
}

/// Reads a file from `offset` on, until there is no room or nothing more; says how much that was.
fn fill(file: &File, room: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < room.len() {
        let at = offset.saturating_add(u64::try_from(length).unwrap_or(u64::MAX));
        match file.read_at(&mut room[length..], at) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// The same, with a thread for each half.
fn fill_by_halves(file: &File, room: &mut [u8], offset: u64) -> io::Result<usize> {
    let half = room.len() / 2;
    let (first, second) = room.split_at_mut(half);
    let middle = offset.saturating_add(u64::try_from(half).unwrap_or(u64::MAX));
    let (first, second) = std::thread::scope(|threads| {
        let beside = threads.spawn(|| fill(file, second, middle));
        let first = fill(file, first, offset);
        let gone = |_| Err(io::Error::other("a reading thread failed"));
        (first, beside.join().unwrap_or_else(gone))
    });
    let first = first?;
    // A file that ends in its first half has nothing in the second, whatever was read there before.
    Ok(if first < half { first } else { half + second? })
}

/// Does a piece of work on another thread, under a deadline.
async fn within<T: Send + 'static>(
    deadline: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match tokio::time::timeout(deadline, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::Mode;

    use super::*;

    fn open(path: &str, flags: OFlags) -> OwnedFd {
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn takes_an_ordinary_file_of_a_known_device_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        let device = std::fs::metadata(&path).unwrap().dev();
        let (path, fifo) = (path.to_str().unwrap(), fifo.to_str().unwrap());
        let here = folder.path().to_str().unwrap();
        let check = |descriptor, access| {
            ReceivedFile::check(UntrustedFd::new(descriptor), access, &[device]).err()
        };
        assert_eq!(check(open(path, OFlags::RDONLY), Access::Read), None);
        assert_eq!(check(open(path, OFlags::RDONLY | OFlags::NONBLOCK), Access::Read), None);
        assert_eq!(check(open(path, OFlags::WRONLY), Access::Write), None);
        let proc = std::fs::metadata("/proc/self/mem").unwrap().dev();
        let refused = [
            (open(path, OFlags::WRONLY), Access::Read, device),
            (open(path, OFlags::RDWR), Access::Read, device),
            (open(path, OFlags::RDONLY), Access::Write, device),
            (open(path, OFlags::RDWR), Access::Write, device),
            (open(path, OFlags::PATH), Access::Read, device),
            (open(path, OFlags::WRONLY | OFlags::APPEND), Access::Write, device),
            (open(here, OFlags::RDONLY), Access::Read, device),
            (open(fifo, OFlags::RDONLY | OFlags::NONBLOCK), Access::Read, device),
            (open("/dev/null", OFlags::RDONLY), Access::Read, device),
            (open(path, OFlags::RDONLY), Access::Read, device + 1),
            (open("/proc/self/mem", OFlags::RDONLY), Access::Read, device),
            // Even if its device were known, what it calls a file is none.
            (open("/proc/self/mem", OFlags::RDONLY), Access::Read, proc),
            (std::os::unix::net::UnixStream::pair().unwrap().0.into(), Access::Read, device),
        ];
        for (number, (descriptor, access, device)) in refused.into_iter().enumerate() {
            let checked = ReceivedFile::check(UntrustedFd::new(descriptor), access, &[device]);
            assert!(checked.is_err(), "number {number} was taken");
        }
    }

    #[tokio::test]
    async fn reads_what_is_there_though_the_file_is_cut_off_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let device = std::fs::metadata(&path).unwrap().dev();
        let descriptor = open(path.to_str().unwrap(), OFlags::RDONLY);
        let passed =
            ReceivedFile::check(UntrustedFd::new(descriptor), Access::Read, &[device]).unwrap();
        assert_eq!(passed.read(0, 50_000).await.unwrap().len(), 50_000);
        File::options().write(true).open(&path).unwrap().set_len(60_000).unwrap();
        assert_eq!(passed.read(50_000, 50_000).await.unwrap().len(), 10_000);
        assert_eq!(passed.read(60_000, 40_000).await.unwrap().len(), 0);
    }
}
