//! Contents out of a repository's object store, read without git.
//!
//! The agent may have written to the store. So it is reached from the folder that was held before the
//! agent ran, nothing in it is followed out of it, everything is bounded, and what is read counts only
//! if it has the name it was asked for by.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;
use rustix::fs::{Dir, Mode, OFlags, openat};

use super::oid::{HashKind, Oid};
use super::open::{open_folder, open_regular};

/// The longest chain of deltas that is followed; git makes none longer.
const MAX_CHAIN: usize = 4096;

/// The most packs that are looked into.
const MAX_PACKS: usize = 10_000;

/// An object store.
#[derive(Debug)]
pub(super) struct Objects {
    dir: OwnedFd,
    hash: HashKind,
}

/// What a pack says of one object.
enum PackedObject {
    Whole(Vec<u8>),
    OnOffset(u64, Vec<u8>),
    OnObject(Oid, Vec<u8>),
}

impl Objects {
    pub(super) fn new(dir: OwnedFd, hash: HashKind) -> Self {
        Self { dir, hash }
    }

    pub(super) fn hash(&self) -> HashKind {
        self.hash
    }

    /// Whether it leads to other stores, which are not read.
    pub(super) fn has_alternates(&self) -> bool {
        openat(&self.dir, "info/alternates", OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).is_ok()
    }

    /// The content of a blob of at most `limit` bytes; `None` if it is not there, is larger, or is not
    /// what its name says.
    pub(super) fn blob(&self, oid: &Oid, limit: u64) -> Option<Vec<u8>> {
        let found = self.loose(oid, limit).or_else(|| self.packed(oid, limit))?;
        (self.hash.of_blob(&found) == *oid).then_some(found)
    }

    fn loose(&self, oid: &Oid, limit: u64) -> Option<Vec<u8>> {
        let name = oid.to_string();
        let (folder, rest) = name.split_at_checked(2)?;
        let folder = open_folder(&self.dir, folder.as_bytes()).ok()?;
        let file = open_regular(&folder, rest.as_bytes()).ok()?;
        let mut inflated = Vec::new();
        let decoder = ZlibDecoder::new(BufReader::new(file));
        // The longest header of a blob is much shorter than this.
        decoder.take(limit.saturating_add(64)).read_to_end(&mut inflated).ok()?;
        let end = inflated.iter().position(|byte| *byte == 0)?;
        let header = inflated.get(..end)?;
        header.strip_prefix(b"blob ")?;
        inflated.drain(..=end);
        (inflated.len() as u64 <= limit).then_some(inflated)
    }

    fn packed(&self, oid: &Oid, limit: u64) -> Option<Vec<u8>> {
        let folder = open_folder(&self.dir, b"pack").ok()?;
        let names: Vec<Vec<u8>> = Dir::read_from(&folder)
            .ok()?
            .take(MAX_PACKS)
            .filter_map(|entry| Some(entry.ok()?.file_name().to_bytes().to_vec()))
            .collect();
        for name in names {
            let Some(stem) = name.strip_suffix(b".idx") else { continue };
            let Ok(index) = open_regular(&folder, &name) else { continue };
            let Some(offset) = lookup(&index, oid) else { continue };
            let Ok(pack) = open_regular(&folder, &[stem, b".pack"].concat()) else { continue };
            if let Some(found) = self.unpack(&pack, &index, offset, limit) {
                return Some(found);
            }
        }
        None
    }

    /// One object of a pack, its deltas applied.
    fn unpack(&self, pack: &File, index: &File, offset: u64, limit: u64) -> Option<Vec<u8>> {
        let mut deltas = Vec::new();
        let mut at = offset;
        let mut held = 0u64;
        let mut content = loop {
            match self.entry(pack, at, limit)? {
                PackedObject::Whole(content) => break content,
                PackedObject::OnOffset(base, delta) => {
                    held = held.checked_add(delta.len() as u64)?;
                    deltas.push(delta);
                    at = base;
                }
                PackedObject::OnObject(base, delta) => {
                    held = held.checked_add(delta.len() as u64)?;
                    deltas.push(delta);
                    at = lookup(index, &base)?;
                }
            }
            if deltas.len() > MAX_CHAIN || held > limit.saturating_mul(4) {
                return None;
            }
        };
        while let Some(delta) = deltas.pop() {
            content = apply(&content, &delta, limit)?;
        }
        Some(content)
    }

    fn entry(&self, pack: &File, offset: u64, limit: u64) -> Option<PackedObject> {
        let mut reader = BufReader::with_capacity(16 << 10, FileFrom { file: pack, offset });
        let (kind, size) = entry_header(&mut reader)?;
        if size > limit {
            return None;
        }
        match kind {
            3 => Some(PackedObject::Whole(inflate(reader, size)?)),
            6 => {
                let base = offset.checked_sub(base_distance(&mut reader)?)?;
                // A base lies before what is built on it, so that no chain is a circle.
                (base < offset).then_some(())?;
                Some(PackedObject::OnOffset(base, inflate(reader, size)?))
            }
            7 => {
                let mut name = vec![0u8; self.hash.len()];
                reader.read_exact(&mut name).ok()?;
                let base = Oid::from_bytes(self.hash, &name)?;
                Some(PackedObject::OnObject(base, inflate(reader, size)?))
            }
            _ => None,
        }
    }
}

/// A file from somewhere on.
struct FileFrom<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

fn byte(reader: &mut dyn Read) -> Option<u8> {
    let mut one = [0u8];
    reader.read_exact(&mut one).ok()?;
    Some(one[0])
}

fn entry_header(reader: &mut dyn Read) -> Option<(u8, u64)> {
    let mut next = byte(reader)?;
    let kind = (next >> 4) & 7;
    let mut size = u64::from(next & 15);
    let mut shift = 4;
    while next & 0x80 != 0 {
        next = byte(reader)?;
        size |= u64::from(next & 0x7f).checked_shl(shift)?;
        shift += 7;
    }
    Some((kind, size))
}

/// How far before an entry its base lies.
fn base_distance(reader: &mut dyn Read) -> Option<u64> {
    let mut next = byte(reader)?;
    let mut distance = u64::from(next & 0x7f);
    while next & 0x80 != 0 {
        next = byte(reader)?;
        distance =
            distance.checked_add(1)?.checked_mul(128)?.checked_add(u64::from(next & 0x7f))?;
    }
    Some(distance)
}

fn inflate(reader: impl io::BufRead, size: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    ZlibDecoder::new(reader).take(size.saturating_add(1)).read_to_end(&mut content).ok()?;
    (content.len() as u64 == size).then_some(content)
}

/// Where an object is in the pack that an index of version 2 belongs to.
fn lookup(index: &File, oid: &Oid) -> Option<u64> {
    const TABLE: u64 = 8 + 256 * 4;
    let read_u32 = |at: u64| {
        let mut word = [0u8; 4];
        index.read_exact_at(&mut word, at).ok()?;
        Some(u32::from_be_bytes(word))
    };
    if read_u32(0)? != 0xff74_4f63 || read_u32(4)? != 2 {
        return None;
    }
    let (name, width) = (oid.as_bytes(), oid.kind().len() as u64);
    let first = u64::from(*name.first()?);
    let mut low = match first {
        0 => 0,
        _ => u64::from(read_u32(8 + (first - 1) * 4)?),
    };
    let mut high = u64::from(read_u32(8 + first * 4)?);
    let total = u64::from(read_u32(8 + 255 * 4)?);
    let mut found = vec![0u8; oid.kind().len()];
    while low < high {
        let middle = low.midpoint(high);
        index.read_exact_at(&mut found, TABLE + middle * width).ok()?;
        match found.as_slice().cmp(name) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => {
                let offsets = TABLE + total * (width + 4);
                let offset = read_u32(offsets + middle * 4)?;
                if offset & 0x8000_0000 == 0 {
                    return Some(u64::from(offset));
                }
                let at = offsets + total * 4 + u64::from(offset & 0x7fff_ffff) * 8;
                return Some((u64::from(read_u32(at)?) << 32) | u64::from(read_u32(at + 4)?));
            }
        }
    }
    None
}

/// What a delta makes of its base.
fn apply(base: &[u8], delta: &[u8], limit: u64) -> Option<Vec<u8>> {
    let mut rest = delta;
    let base_size = delta_size(&mut rest)?;
    let size = delta_size(&mut rest)?;
    if base_size != base.len() as u64 || size > limit {
        return None;
    }
    let mut out: Vec<u8> = Vec::with_capacity(usize::try_from(size).ok()?.min(base.len() * 2 + 64));
    while let Some((&op, after)) = rest.split_first() {
        rest = after;
        if op & 0x80 == 0 {
            let (literal, after) = rest.split_at_checked(usize::from(op))?;
            // Zero is kept free by git for what is to come.
            (op != 0).then_some(())?;
            out.extend_from_slice(literal);
            rest = after;
        } else {
            let mut number = |bits: std::ops::Range<u32>| {
                let mut value = 0usize;
                for (place, bit) in bits.enumerate() {
                    if op & (1 << bit) != 0 {
                        let (&byte, after) = rest.split_first()?;
                        value |= usize::from(byte) << (8 * place);
                        rest = after;
                    }
                }
                Some(value)
            };
            let offset = number(0..4)?;
            let length = match number(4..7)? {
                0 => 0x10000,
                length => length,
            };
            out.extend_from_slice(base.get(offset..offset.checked_add(length)?)?);
        }
        if out.len() as u64 > size {
            return None;
        }
    }
    (out.len() as u64 == size).then_some(out)
}

fn delta_size(rest: &mut &[u8]) -> Option<u64> {
    let (mut size, mut shift) = (0u64, 0u32);
    loop {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        size |= u64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::collect::open::open_root;

    fn git(folder: &Path, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(folder).args(["-c", "user.name=t", "-c", "user.email=t@t"]);
        assert!(git.args(arguments).output().unwrap().status.success(), "{arguments:?}");
    }

    fn store(folder: &Path) -> Objects {
        Objects::new(open_root(&folder.join(".git/objects")).unwrap(), HashKind::Sha1)
    }

    #[test]
    fn reads_loose_packed_and_deltified_blobs() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q"]);
        let mut versions = Vec::new();
        for version in 0..20 {
            let mut content: Vec<u8> = (0..4000u32).flat_map(|n| n.to_le_bytes()).collect();
            content[version * 100..version * 100 + 8].fill(u8::try_from(version).unwrap());
            std::fs::write(folder.path().join("f"), &content).unwrap();
            git(folder.path(), &["add", "f"]);
            git(folder.path(), &["commit", "-qm", "x"]);
            versions.push(content);
        }
        for packed in [false, true] {
            if packed {
                git(folder.path(), &["repack", "-adq", "--depth=50", "--window=50"]);
            }
            let objects = store(folder.path());
            for content in &versions {
                let oid = HashKind::Sha1.of_blob(content);
                assert_eq!(objects.blob(&oid, 1 << 20).as_ref(), Some(content), "{packed}");
                assert_eq!(objects.blob(&oid, 100), None);
            }
            assert_eq!(objects.blob(&HashKind::Sha1.of_blob(b"no"), 1 << 20), None);
        }
    }

    #[test]
    fn believes_no_object_that_is_not_what_its_name_says() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q"]);
        std::fs::write(folder.path().join("a"), "one").unwrap();
        std::fs::write(folder.path().join("b"), "two").unwrap();
        git(folder.path(), &["add", "-A"]);
        let place = |content: &[u8]| {
            let name = HashKind::Sha1.of_blob(content).to_string();
            folder.path().join(".git/objects").join(&name[..2]).join(&name[2..])
        };
        std::fs::remove_file(place(b"one")).unwrap();
        std::fs::copy(place(b"two"), place(b"one")).unwrap();
        let objects = store(folder.path());
        assert_eq!(objects.blob(&HashKind::Sha1.of_blob(b"one"), 100), None);
        assert!(objects.blob(&HashKind::Sha1.of_blob(b"two"), 100).is_some());
        // Neither a link nor a pipe is opened.
        std::fs::remove_file(place(b"one")).unwrap();
        std::os::unix::fs::symlink(place(b"two"), place(b"one")).unwrap();
        assert_eq!(objects.blob(&HashKind::Sha1.of_blob(b"one"), 100), None);
        std::fs::remove_file(place(b"one")).unwrap();
        assert!(Command::new("mkfifo").arg(place(b"one")).status().unwrap().success());
        assert_eq!(objects.blob(&HashKind::Sha1.of_blob(b"one"), 100), None);
    }

    #[test]
    fn refuses_deltas_that_lie() {
        assert_eq!(apply(b"abc", &[3, 3, 0x90, 3], 10), Some(b"abc".to_vec()));
        for delta in [
            &[4, 3, 0x90, 3][..],
            &[3, 3, 0x90, 4],
            &[3, 3, 0],
            &[3, 3, 2, 1],
            &[3, 100, 1, 1],
            &[3],
            &[],
        ] {
            assert_eq!(apply(b"abc", delta, 10), None, "{delta:?}");
        }
    }
}
