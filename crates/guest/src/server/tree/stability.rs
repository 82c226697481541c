//! Whether the times of a file will show every later change of its content.
//!
//! A host that saved a file takes it for unchanged as long as its number, size and times are the same.
//! That is right only if nothing can change the content from then on without changing the time of the
//! last change (ctime), which no program can set. The proof, with what each file system does, is in
//! `docs/snapshots.md`; in short, a file is stable if
//!
//! - its file system changes the times at the first store into each page of a new shared mapping;
//! - nobody had it open for writing, nor mapped so, after `since`: no store and no write is under way
//!   that changed the times already;
//! - its ctime is older than `since` by more than the clock of the file system may be coarse.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide_proto::tree::Clock;
use rustix::fs::{
    Mode, OFlags, Stat, Timespec, Timestamps, fstat, fstatfs, futimens, openat, syncfs,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{capabilities, set_capabilities};
use rustix::time::{ClockId, clock_gettime};
use serde_bytes::ByteBuf;

use super::sys::{Mapping, has_no_writer};
use crate::sys::set_file_uid;

/// How coarse the kernel's clock for files may be (a tick, 10 ms at most), and how far a clock may be set
/// without the host's noticing, with room to spare.
const TICK: Duration = Duration::from_millis(50);

/// The same where times are whole seconds, as on a file system made with small inodes.
const WHOLE_SECONDS: Duration = Duration::from_secs(2);

/// What a file system does about times when a shared mapping is stored into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    /// Every page is write-protected until the times have been changed.
    Kept,
    /// As the file system below does, which cannot be asked; nor does a lease tell of its mappings.
    Below,
    /// They may not change at all (tmpfs), or nothing is known.
    Unknown,
}

impl Times {
    fn of(file: impl AsFd) -> Self {
        const EXT: u64 = 0xEF53;
        const XFS: u64 = 0x5846_5342;
        const BTRFS: u64 = 0x9123_683E;
        const OVERLAY: u64 = 0x794C_7630;
        match fstatfs(file).map(|system| system.f_type.cast_unsigned() & 0xFFFF_FFFF) {
            Ok(EXT | XFS | BTRFS) => Self::Kept,
            Ok(OVERLAY) => Self::Below,
            _ => Self::Unknown,
        }
    }
}

/// Since when the times of files show every change, for one look through a tree.
#[derive(Debug, Default)]
pub(super) struct Stability {
    /// When the mappings of all files were write-protected, where that had to be made sure of.
    protected: Option<Duration>,
}

impl Stability {
    /// Whether mappings must be write-protected first, so that anything is stable.
    pub(super) fn needs_protection(base: &OwnedFd) -> bool {
        Times::of(base) == Times::Below
    }

    /// Has the kernel write-protect the mappings of all files of the file system, and makes sure that it
    /// did. May take as long as it takes to write what waits to be written.
    pub(super) fn protect(base: &OwnedFd) -> Self {
        let since = now();
        let protected = protects(base).unwrap_or(false).then_some(since);
        Self { protected }
    }

    /// Looks at a file that was opened for reading only: its state, and whether it is stable.
    pub(super) fn look(&self, file: &OwnedFd) -> Result<(Stat, bool), Errno> {
        let since = match Times::of(file) {
            Times::Kept => Some(now()),
            Times::Below => self.protected,
            Times::Unknown => None,
        };
        // In this order: whoever opens it after that changes its times to something later than `since`.
        let is_held = since.is_some() && has_no_writer_as_owner(file).unwrap_or(false);
        let stat = fstat(file)?;
        let is_stable = is_held && since.is_some_and(|since| is_older(&stat, since));
        Ok((stat, is_stable))
    }
}

/// As [`has_no_writer`], for a file of anybody: the kernel gives leases only to its owner.
fn has_no_writer_as_owner(file: &OwnedFd) -> Result<bool, Errno> {
    match has_no_writer(file) {
        Err(Errno::ACCESS) => {}
        result => return result,
    }
    let owner = fstat(file)?.st_uid;
    let own = capabilities(None)?;
    let result = set_file_uid(owner).map(|()| has_no_writer(file));
    // Whatever became of it, this thread is what it was.
    let back = set_file_uid(geteuid().as_raw());
    set_capabilities(None, own)?;
    back.map_err(|_| Errno::PERM)?;
    result.unwrap_or(Err(Errno::PERM))
}

/// Whether the last change is so long before a moment that whatever happens after it gets a later time.
fn is_older(stat: &Stat, moment: Duration) -> bool {
    let seconds = u64::try_from(stat.st_ctime).unwrap_or(0);
    let nanos = u32::try_from(stat.st_ctime_nsec).unwrap_or(0).min(999_999_999);
    let slack = if nanos == 0 { WHOLE_SECONDS } else { TICK };
    Duration::new(seconds, nanos).saturating_add(slack) < moment
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Write-protects all mappings, and tries on one of our own whether the next store changes the times.
fn protects(base: &OwnedFd) -> Result<bool, Errno> {
    // It has no name, so nothing of the tree changes.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(base, c".", flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::pwrite(&file, &[0; 4096], 0)?;
    let mapping = Mapping::new(&file)?;
    mapping.store()?;
    let past = Timespec { tv_sec: 1, tv_nsec: 0 };
    futimens(&file, &Timestamps { last_access: past, last_modification: past })?;
    syncfs(base)?;
    if fstat(&file)?.st_mtime != past.tv_sec {
        return Ok(false);
    }
    mapping.store()?;
    Ok(fstat(&file)?.st_mtime != past.tv_sec)
}

/// Which clock the times of files are of, and how it is set.
pub(super) fn clock() -> Option<Clock> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
    let nanos = |clock| {
        let time = clock_gettime(clock);
        i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
    };
    // One that is read between two others, which are close together unless we are interrupted.
    let sample = |_| {
        let before = nanos(ClockId::Boottime);
        let real = nanos(ClockId::Realtime);
        let after = nanos(ClockId::Boottime);
        (after - before, real - before)
    };
    let (_, offset) = (0..8).map(sample).min()?;
    Some(Clock {
        boot: ByteBuf::from(boot.trim_ascii()),
        offset_nanos: i64::try_from(offset).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    /// Looks until the file is stable, or a second has passed without that.
    fn becomes_stable(file: &OwnedFd) -> bool {
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while std::time::Instant::now() < until {
            if Stability::default().look(file).unwrap().1 {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn read_only(path: &std::path::Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn only_files_nobody_writes_to_are_stable_and_only_where_times_tell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(&[1; 4096]).unwrap();
        let file = read_only(&path);
        if Times::of(&file) != Times::Kept {
            return;
        }
        assert!(!Stability::default().look(&file).unwrap().1, "it was changed just now");
        drop(writer);
        assert!(becomes_stable(&file));
        // Open for writing, whether anything is written or not.
        let writer: OwnedFd = File::options().read(true).write(true).open(&path).unwrap().into();
        assert!(!Stability::default().look(&file).unwrap().1);
        // A mapping that outlives its descriptor.
        let mapping = Mapping::new(&writer).unwrap();
        drop(writer);
        assert!(!Stability::default().look(&file).unwrap().1);
        drop(mapping);
        assert!(becomes_stable(&file));
        // Nothing is left behind that anybody who writes would wait for.
        File::options().write(true).open(&path).unwrap();
    }

    #[test]
    fn nothing_in_memory_is_stable() {
        let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
        let held = read_only(file.path());
        assert_eq!(Times::of(&held), Times::Unknown);
        drop(file);
        assert!(!Stability::default().look(&held).unwrap().1);
    }

    #[test]
    fn protects_mappings_where_times_are_kept_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let base = read_only(folder.path());
        if Times::of(&base) == Times::Kept {
            assert_eq!(protects(&base), Ok(true));
        }
        if let Ok(folder) = tempfile::tempdir_in("/dev/shm") {
            assert_eq!(protects(&read_only(folder.path())), Ok(false));
        }
    }

    #[test]
    fn whole_seconds_need_more_time() {
        let file = tempfile::tempfile().unwrap();
        let mut stat = fstat(&file).unwrap();
        (stat.st_ctime, stat.st_ctime_nsec) = (100, 0);
        assert!(!is_older(&stat, Duration::from_millis(101_900)));
        assert!(is_older(&stat, Duration::from_millis(102_100)));
        (stat.st_ctime, stat.st_ctime_nsec) = (100, 1);
        assert!(!is_older(&stat, Duration::from_millis(100_050)));
        assert!(is_older(&stat, Duration::from_millis(100_060)));
    }

    #[test]
    fn the_clock_is_the_same_as_long_as_nobody_sets_it() {
        let (one, other) = (clock().unwrap(), clock().unwrap());
        assert_eq!(one.boot, other.boot);
        assert!((one.offset_nanos - other.offset_nanos).abs() < 10_000_000);
    }
}
