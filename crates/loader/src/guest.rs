//! Finds the guest, or makes it of its parts.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use blake3::Hasher;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::io::Read;

use crate::Failure;
use crate::parts::Parts;

/// How much is unpacked at once.
const ROOM: usize = 64 * 1024;

/// The most a guest may have: whoever put the parts there chose what they unpack to.
const MOST: usize = 64 << 20;

/// Anybody in the pod may start it, and nobody change it.
const MODE: Mode = Mode::from_raw_mode(0o555);

/// A guest whose content was checked.
#[derive(Debug)]
pub struct Guest {
    /// Its file, as it was when it was checked.
    pub file: OwnedFd,
    /// Where that is.
    pub path: String,
    folder: String,
}

impl Guest {
    /// Why it could not be executed.
    #[must_use]
    pub fn failed(&self, errno: Errno) -> Failure {
        let flags = rustix::fs::fstatvfs(&self.file).map(|found| found.f_flag);
        let is_noexec = flags.is_ok_and(|flags| flags.contains(StatVfsMountFlags::NOEXEC));
        match errno {
            Errno::ACCESS | Errno::PERM if is_noexec => {
                Failure::NoExec { folder: self.folder.clone() }
            }
            errno => Failure::Execute { path: self.path.clone(), errno },
        }
    }
}

/// Opens the guest with that hash for the loader that lies at `loader`, and makes it if it is not there.
///
/// # Errors
///
/// Says what is wrong with the arguments, the parts, or the place for the guest.
pub fn open(loader: &str, hash: &str) -> Result<Guest, Failure> {
    let (bin, run) = folders(loader).ok_or(Failure::Usage)?;
    if hash.len() != 64 || !hash.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(Failure::Usage);
    }
    let path = format!("{run}/guest-{hash}");
    // What somebody else left under that name is replaced.
    let file = match open_file(&path) {
        Ok(file) if is_intact(&file, hash) => file,
        _ => make(&bin, &path, hash)?,
    };
    Ok(Guest { file, path, folder: run })
}

/// The folder of the loader, and the one for the guest beside it.
fn folders(loader: &str) -> Option<(String, String)> {
    let (bin, _) = loader.rsplit_once('/')?;
    let (above, _) = bin.rsplit_once('/')?;
    Some((bin.into(), format!("{above}/run")))
}

fn open_file(path: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn is_intact(file: &OwnedFd, hash: &str) -> bool {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; ROOM];
    let mut total = 0;
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(file, &mut buffer[..])) {
            Ok(0) => return hasher.finalize().to_hex().as_str() == hash,
            Ok(read) if total <= MOST => {
                hasher.update(buffer.get(..read).unwrap_or_default());
                total += read;
            }
            Ok(_) | Err(_) => return false,
        }
    }
}

/// Writes the guest under a name of this process, and gives it its own once it is known to be the right one.
fn make(bin: &str, path: &str, hash: &str) -> Result<OwnedFd, Failure> {
    let parts = Parts::open(bin)?;
    let written = format!("{path}.{}", rustix::process::getpid().as_raw_pid());
    let failed = |errno| Failure::Write { path: written.clone(), errno };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // Left by a process that had our number.
    let _ = rustix::fs::unlink(written.as_str());
    let file = rustix::fs::open(written.as_str(), flags, Mode::RWXU).map_err(failed)?;
    let made = unpack(parts, &file, hash, failed).and_then(|()| {
        rustix::fs::fchmod(&file, MODE).map_err(failed)?;
        // A file that is open for writing cannot be executed.
        drop(file);
        rustix::fs::renameat(CWD, written.as_str(), CWD, path).map_err(failed)?;
        open_file(path).map_err(failed)
    });
    if made.is_err() {
        let _ = rustix::fs::unlinkat(CWD, written.as_str(), AtFlags::empty());
    }
    made
}

fn unpack(
    parts: Parts,
    file: impl AsFd,
    hash: &str,
    failed: impl Fn(Errno) -> Failure,
) -> Result<(), Failure> {
    let mut decoder = StreamingDecoder::new(parts).map_err(|_| Failure::Damaged)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; ROOM];
    let mut total = 0;
    loop {
        let Ok(read) = decoder.read(&mut buffer) else {
            return Err(decoder.get_mut().failure.take().unwrap_or(Failure::Damaged));
        };
        total += read;
        if read == 0 {
            break;
        }
        if total > MOST {
            return Err(Failure::Damaged);
        }
        let bytes = buffer.get(..read).unwrap_or_default();
        hasher.update(bytes);
        write_all(file.as_fd(), bytes).map_err(&failed)?;
    }
    let found = hasher.finalize().to_hex();
    match found.as_str() == hash {
        true => Ok(()),
        false => Err(Failure::Hash { found: found.as_str().into() }),
    }
}

fn write_all(file: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, bytes))?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::borrow::ToOwned;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    struct Pod {
        _folder: tempfile::TempDir,
        top: PathBuf,
    }

    impl Pod {
        fn new(parts: &[&[u8]]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let top = folder.path().to_owned();
            fs::create_dir(top.join("bin")).unwrap();
            fs::create_dir(top.join("run")).unwrap();
            for (number, part) in parts.iter().enumerate() {
                fs::write(top.join(format!("bin/part-{number}")), part).unwrap();
            }
            Self { _folder: folder, top }
        }

        fn open(&self, hash: &str) -> Result<Guest, Failure> {
            open(self.top.join("bin/loader").to_str().unwrap(), hash)
        }

        fn run(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.top.join("run")).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    fn program() -> (Vec<u8>, Vec<u8>, String) {
        let bytes: Vec<u8> =
            (0..700_000_u32).flat_map(|n| (n.wrapping_mul(n) / 7).to_le_bytes()).collect();
        let packed = zstd::bulk::compress(&bytes, 3).unwrap();
        let hash = blake3::hash(&bytes).to_hex().to_string();
        (bytes, packed, hash)
    }

    fn cut(packed: &[u8], at: usize) -> [&[u8]; 2] {
        let (first, second) = packed.split_at(at);
        [first, second]
    }

    #[test]
    fn joins_parts_wherever_they_were_cut() {
        let (bytes, packed, hash) = program();
        for at in [0, 1, 5, packed.len() / 2, packed.len() - 1, packed.len()] {
            let pod = Pod::new(&cut(&packed, at));
            let guest = pod.open(&hash).unwrap();
            assert!(fs::read(&guest.path).unwrap() == bytes, "cut at {at}");
            assert_eq!(fs::metadata(&guest.path).unwrap().permissions().mode() & 0o7777, 0o555);
            assert_eq!(pod.run(), [PathBuf::from(&guest.path)], "nothing lies beside it");
        }
    }

    #[test]
    fn takes_the_one_that_is_there_and_replaces_any_other() {
        let (bytes, packed, hash) = program();
        let pod = Pod::new(&[&packed]);
        let first = fs::metadata(pod.open(&hash).unwrap().path).unwrap().ino();
        let path = pod.open(&hash).unwrap().path;
        assert_eq!(fs::metadata(&path).unwrap().ino(), first);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        assert!(fs::read(pod.open(&hash).unwrap().path).unwrap() == bytes);
        fs::remove_file(&path).unwrap();
        let elsewhere = pod.top.join("elsewhere");
        fs::write(&elsewhere, &bytes).unwrap();
        symlink(&elsewhere, &path).unwrap();
        pod.open(&hash).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file(), "no link is followed");
    }

    #[test]
    fn names_what_is_wrong_and_leaves_nothing() {
        let (_, packed, hash) = program();
        let [first, _] = cut(&packed, packed.len() / 2);
        let wrong = "0".repeat(64);
        let cases: [(&[&[u8]], &str, i32, &str); 6] = [
            (&[], &hash, 66, "a part of the guest is missing: "),
            (&[first], &hash, 66, "part-1"),
            (&[&packed], &wrong, 65, &hash),
            (&[b"no archive at all"], &hash, 65, "damaged"),
            (&[&packed], "0123", 64, "usage"),
            (&[&packed], &hash.to_uppercase(), 64, "usage"),
        ];
        for (parts, hash, code, said) in cases {
            let pod = Pod::new(parts);
            let failure = pod.open(hash).unwrap_err();
            assert_eq!(failure.code(), code, "{failure}");
            assert!(failure.to_string().contains(said), "{failure}");
            assert_eq!(pod.run(), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn names_the_place_that_cannot_be_written() {
        let (_, packed, hash) = program();
        let pod = Pod::new(&[&packed]);
        fs::remove_dir(pod.top.join("run")).unwrap();
        let failure = pod.open(&hash).unwrap_err();
        assert_eq!(failure.code(), 73);
        assert!(failure.to_string().contains("/run/guest-"), "{failure}");
        let full = Failure::Write { path: "/.bastide/run/guest".into(), errno: Errno::NOSPC };
        assert_eq!(full.to_string(), "no room for the guest: /.bastide/run/guest");
    }

    #[test]
    fn finds_its_folders_by_the_name_it_was_started_by() {
        let found = folders("/.bastide/bin/loader").unwrap();
        assert_eq!(found, ("/.bastide/bin".into(), "/.bastide/run".into()));
        assert_eq!(folders("loader"), None);
    }
}
