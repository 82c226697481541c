//! The same random operations on a mount and on a plain folder.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bastide_mount::MountSpec;

use crate::harness::{Mounted, drop_pages, full, may_mount, seed};
use crate::proxy::Rng;
use crate::servers::{Kind, Server};

/// What an operation showed: what it read, or the error.
type ScannedEntry = Result<Vec<u8>, Option<i32>>;

fn seen(outcome: io::Result<Vec<u8>>) -> ScannedEntry {
    outcome.map_err(|error| error.raw_os_error())
}

fn nothing(outcome: io::Result<()>) -> io::Result<Vec<u8>> {
    outcome.map(|()| Vec::new())
}

/// A path of a small world, so that operations meet.
fn path(chance: &mut Rng) -> PathBuf {
    const NAMES: [&str; 6] = ["a", "b", "A", "ä %+&", " c ", "d.txt"];
    let depth = 1 + chance.below(3);
    (0..depth).map(|_| NAMES[usize::try_from(chance.below(6)).unwrap()]).collect()
}

fn bytes(chance: &mut Rng) -> Vec<u8> {
    let size = [0, 1, 100, 5000, 70_000][usize::try_from(chance.below(5)).unwrap()];
    vec![u8::try_from(chance.below(256)).unwrap(); size]
}

/// Names, kinds and sizes below a folder.
fn shape(root: &Path) -> Vec<(PathBuf, Option<u64>)> {
    fn walk(root: &Path, at: &Path, shape: &mut Vec<(PathBuf, Option<u64>)>) {
        for entry in fs::read_dir(at).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            let relative = entry.path().strip_prefix(root).unwrap().to_owned();
            shape.push((relative, meta.is_file().then_some(meta.len())));
            if meta.is_dir() {
                walk(root, &entry.path(), shape);
            }
        }
    }
    let mut shape_ = Vec::new();
    walk(root, root, &mut shape_);
    shape_.sort();
    shape_
}

fn step(root: &Path, mut chance: Rng) -> (String, ScannedEntry) {
    let kind = chance.below(14);
    let (one, other) = (path(&mut chance), path(&mut chance));
    let (first, second) = (root.join(&one), root.join(&other));
    let data = bytes(&mut chance);
    let offset = chance.below(80_000);
    let outcome = match kind {
        0..=2 => nothing(fs::write(&first, &data)),
        3 => {
            nothing(File::options().append(true).open(&first).and_then(|mut f| f.write_all(&data)))
        }
        4 => nothing(
            File::options().write(true).open(&first).and_then(|f| f.write_all_at(&data, offset)),
        ),
        5 => nothing(File::options().write(true).open(&first).and_then(|f| f.set_len(offset))),
        6 => nothing(fs::create_dir(&first)),
        7 => nothing(fs::remove_file(&first)),
        8 => nothing(fs::remove_dir(&first)),
        9 => nothing(fs::rename(&first, &second)),
        10 => File::open(&first).and_then(|mut file| {
            let mut content = Vec::new();
            file.read_to_end(&mut content).map(|_| content)
        }),
        11 => held(&first, &second, &data, offset),
        12 => fs::metadata(&first).map(|meta| {
            let size = if meta.is_file() { meta.len() } else { 0 };
            size.to_le_bytes().to_vec()
        }),
        _ => File::create_new(&first).and_then(|mut file| nothing(file.write_all(&data))),
    };
    (format!("{kind}: {one:?} {other:?} {} @{offset}", data.len()), seen(outcome))
}

/// A file that is renamed or removed while it is open, and read and written on.
fn held(first: &Path, second: &Path, data: &[u8], offset: u64) -> io::Result<Vec<u8>> {
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(first)?;
    file.write_all_at(data, offset % 1000)?;
    if offset.is_multiple_of(2) {
        fs::remove_file(first)?;
    } else {
        fs::rename(first, second)?;
    }
    file.write_all_at(b"more", 3)?;
    file.sync_all()?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn a_mount_does_as_a_plain_folder_does() {
    if !may_mount() {
        return;
    }
    let Some(server) = Server::start(Kind::Moto) else { return };
    let spec = MountSpec { metadata_ttl_ms: 200, ..server.spec() };
    let mount = Mounted::new(spec);
    let plain = tempfile::tempdir().unwrap();
    let steps: u64 = if full() { 100_000 } else { 2000 };
    let seed = seed();
    eprintln!("seed {seed}");
    for number in 0..steps {
        let chance = || Rng::new(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let (what, expected) = step(plain.path(), chance());
        let (_, got) = step(&mount.path, chance());
        assert!(
            got == expected,
            "step {number}, {what}: {:?} instead of {:?}",
            short(&got),
            short(&expected)
        );
        if number % 500 == 499 {
            drop_pages();
            assert_eq!(shape(&mount.path), shape(plain.path()), "after step {number}");
        }
    }
    drop(mount);
    // The store has it all, for whoever comes next.
    let mount = Mounted::with_cache(server.spec(), None);
    assert_eq!(shape(&mount.path), shape(plain.path()));
    for (path, size) in shape(plain.path()) {
        if size.is_some() {
            assert!(
                fs::read(mount.at(&path)).unwrap() == fs::read(plain.path().join(&path)).unwrap()
            );
        }
    }
}

fn short(seen: &ScannedEntry) -> Result<usize, Option<i32>> {
    seen.as_ref().map(Vec::len).map_err(|errno| *errno)
}
