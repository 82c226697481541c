//! Random trees, saved and restored.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bastide::model::Manifest;
use bastide::{CreateOptions, Store};

use crate::suite::{Context, Outcome, TrialError};

/// Numbers that look random, the same for the same seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        let noisy = self.below(2) == 0;
        (0..length)
            .map(|at| if noisy { self.next().to_le_bytes()[0] } else { at.to_le_bytes()[0] / 8 })
            .collect()
    }

    fn name(&mut self) -> OsString {
        let length = 1 + self.below(12);
        let byte = |random: &mut Self| match random.below(8) {
            0 => 0x80 | random.next().to_le_bytes()[0],
            1 => b'\n',
            _ => b'a' + (random.next() % 26).to_le_bytes()[0],
        };
        OsString::from_vec((0..length).map(|_| byte(self)).collect())
    }
}

/// Makes a tree.
fn grow(random: &mut Rng, top: &Path) -> Result<(), TrialError> {
    let mut folders = vec![top.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    for _ in 0..random.below(14) {
        let folder = folders[usize::try_from(random.below(folders.len() as u64))?].clone();
        let path = folder.join(random.name());
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match random.below(40) {
            0..=9 => {
                fs::create_dir(&path)?;
                folders.push(path);
                continue;
            }
            10..=13 => symlink(
                OsString::from_vec([b"/x/".as_slice(), random.name().as_bytes()].concat()),
                &path,
            )?,
            14..=16 => {
                let mode = rustix::fs::Mode::RUSR;
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)?;
            }
            17..=20 if !files.is_empty() => {
                let other = usize::try_from(random.below(files.len() as u64))?;
                fs::hard_link(&files[other], &path)?;
                continue;
            }
            21..=22 => {
                let file = File::create(&path)?;
                let at = random.below(300_000);
                file.write_all_at(&random.bytes(100), at)?;
                file.set_len(at + 100 + random.below(300_000))?;
                files.push(path.clone());
            }
            23 => {
                let length = random.below(400_000);
                fs::write(&path, random.bytes(length))?;
                files.push(path.clone());
            }
            _ => {
                let length = random.below(2000);
                fs::write(&path, random.bytes(length))?;
                // Not every file system has them.
                let value = random.bytes(9);
                let flags = rustix::fs::XattrFlags::empty();
                let _ = rustix::fs::setxattr(&path, "user.bastide", &value, flags);
                files.push(path.clone());
            }
        }
        if !path.is_symlink() {
            let mode = u32::try_from(random.below(0o1000))?;
            fs::set_permissions(&path, Permissions::from_mode(mode | 0o200))?;
        }
    }
    // From the inside out: what is changed in a folder changes the folder.
    for path in files.iter().chain(folders.iter().rev()) {
        let time =
            SystemTime::UNIX_EPOCH + Duration::from_nanos(random.below(2_000_000_000_000_000_000));
        if let Ok(file) = File::options().read(true).open(path) {
            file.set_modified(time)?;
        }
    }
    for folder in folders.iter().skip(1).rev() {
        let mode = u32::try_from(random.below(0o100))?;
        fs::set_permissions(folder, Permissions::from_mode(0o700 | mode))?;
    }
    Ok(())
}

/// What can be seen of an entry.
#[derive(Debug, PartialEq, Eq)]
struct EntryState {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    modified: (i64, i64),
    /// Content or link text, and attributes.
    content: Vec<u8>,
    attribute: Option<Vec<u8>>,
    /// The first path in order that names the same file.
    same_as: PathBuf,
}

fn read_entries(top: &Path) -> Result<BTreeMap<PathBuf, EntryState>, TrialError> {
    let mut found = BTreeMap::new();
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let mut open = vec![top.to_owned()];
    let mut paths = Vec::new();
    while let Some(path) = open.pop() {
        if path.symlink_metadata()?.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
        paths.push(path);
    }
    paths.sort();
    for path in paths {
        let seen = path.symlink_metadata()?;
        let below = path.strip_prefix(top)?.to_owned();
        let content = match seen.file_type() {
            kind if kind.is_symlink() => fs::read_link(&path)?.into_os_string().into_vec(),
            kind if kind.is_file() => fs::read(&path).unwrap_or_else(|_| b"closed".to_vec()),
            _ => Vec::new(),
        };
        let mut value = [0_u8; 64];
        let attribute = rustix::fs::lgetxattr(&path, "user.bastide", &mut value[..]).ok();
        let size = if seen.is_dir() { 0 } else { seen.size() };
        // Folders have numbers of their own; only files can be the same.
        let same_as = match seen.is_file() {
            true => first.entry(seen.ino()).or_insert_with(|| below.clone()).clone(),
            false => below.clone(),
        };
        let looks = EntryState {
            mode: seen.mode(),
            owner: (seen.uid(), seen.gid()),
            size,
            modified: (seen.mtime(), seen.mtime_nsec()),
            content,
            attribute: attribute.map(|length| value[..length].to_vec()),
            same_as,
        };
        found.insert(below, looks);
    }
    Ok(found)
}

/// Removes everything in a folder, whatever its modes.
fn clear(top: &Path) -> Result<(), TrialError> {
    for entry in fs::read_dir(top)? {
        let path = entry?.path();
        if path.symlink_metadata()?.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

pub(super) async fn restores_trees_as_they_were(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Ok(());
    }
    /// How many trees are saved at once.
    const TOGETHER: usize = 50;
    let seed = u64::from(std::process::id()) << 20 | 0x9e37_79b9;
    let mut random = Rng(seed);
    let folder = tempfile::tempdir()?;
    // Where nothing waits for a disk, if there is such a place.
    let memory = Path::new("/dev/shm");
    let kept = match memory.is_dir() {
        true => tempfile::tempdir_in(memory)?,
        false => tempfile::tempdir()?,
    };
    let store = Store::open(kept.path().join("store"))?;
    let mut sessions = Vec::new();
    for name in ["from", "to"] {
        let root = folder.path().join(name);
        fs::create_dir(&root)?;
        let manifest = Manifest { root: root.display().to_string(), ..Manifest::default() };
        sessions.push((context.client().create(&manifest, CreateOptions::default()).await?, root));
    }
    let [(from, source), (to, target)] = &sessions[..] else { return Err("two sessions".into()) };
    for round in 0..context.count(10_000).div_ceil(TOGETHER) {
        for number in 0..TOGETHER {
            let top = source.join(format!("t{number}"));
            fs::create_dir(&top)?;
            grow(&mut random, &top)?;
        }
        from.snapshots(&store).save("trees", None).await?;
        to.snapshots(&store).restore("trees", None).await?;
        let (want, got) = (read_entries(source)?, read_entries(target)?);
        for (path, looks) in &want {
            assert_eq!(got.get(path), Some(looks), "{path:?}, seed {seed}, round {round}");
        }
        assert_eq!(got.len(), want.len(), "seed {seed}, round {round}");
        clear(source)?;
        clear(target)?;
    }
    for (session, _) in sessions {
        session.delete().await?;
    }
    Ok(())
}
