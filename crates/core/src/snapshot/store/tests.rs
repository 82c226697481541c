//! What others do to a store between two steps of this process.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use bastide_archive::tar::{TarKind, TarMember, TarWriter};
use tempfile::TempDir;

use super::fail_points::{self, FailPoint};
use super::verify::each_chunk;
use super::*;

/// A store that several use, each for itself.
struct Shared(TempDir);

impl Shared {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Store {
        Store::open(self.0.path().join("store")).unwrap()
    }
}

/// An archive of files, each of one number over and over, a megabyte and a bit.
fn archive(numbers: &[u64]) -> Vec<u8> {
    let mut tar = Vec::new();
    let mut writer = TarWriter::new(&mut tar);
    for number in numbers {
        let mut state = *number;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_le_bytes()
        };
        let content: Vec<u8> = (0..150_000).flat_map(|_| next()).collect();
        let mut member = TarMember::new(format!("file{number}").as_bytes(), TarKind::File);
        member.size = content.len() as u64;
        writer.append(&member, &mut content.as_slice()).unwrap();
    }
    writer.finish().unwrap();
    tar
}

fn save(store: &Store, name: &str, numbers: &[u64]) {
    store.import(name, archive(numbers).as_slice()).unwrap();
}

fn check(store: &Store) {
    let report = store.verify(None, None).unwrap();
    assert!(report.is_intact(), "{report:?}");
}

/// Reads all of a snapshot.
fn read(reader: &Reader, info: &SnapshotInfo) -> Result<()> {
    let mut needed = HashSet::new();
    each_chunk(reader, info, |id| {
        needed.insert(id);
    })?;
    let mut room = reader::ReadBuffers::default();
    needed.iter().try_for_each(|id| reader.with(id, &mut room, |_| Ok(())))
}

#[test]
fn keeps_what_was_saved_while_its_pack_was_written_anew() {
    let shared = Shared::new();
    let store = shared.open();
    save(&store, "all", &[1, 2, 3, 4]);
    save(&store, "one", &[1]);
    store.remove("all").unwrap();
    // Of the pack little is needed, so that is written anew; now all of it is needed again.
    let other = shared.open();
    fail_points::at(FailPoint::Rewritten, move || save(&other, "again", &[1, 2, 3, 4]));
    assert_eq!(store.collect().unwrap().packs_rewritten, 1);
    check(&shared.open());
    shared.open().collect().unwrap();
    check(&shared.open());
}

#[test]
fn keeps_what_another_collector_decided_about() {
    let shared = Shared::new();
    let store = shared.open();
    save(&store, "all", &[1, 2, 3, 4]);
    save(&store, "one", &[1]);
    store.remove("all").unwrap();
    // The other one finds that the whole pack is needed, and what was written anew is not; then it is not after all.
    let other = shared.open();
    fail_points::at(FailPoint::Rewritten, move || {
        save(&other, "again", &[1, 2, 3, 4]);
        other.collect().unwrap();
        other.remove("again").unwrap();
    });
    store.collect().unwrap();
    check(&shared.open());
}

#[test]
fn removes_nothing_that_somebody_reads_who_came_after_the_look_at_the_leases() {
    let shared = Shared::new();
    let store = shared.open();
    save(&store, "read", &[1]);
    let other = shared.open();
    let reading = Rc::new(RefCell::new(None));
    let hold = Rc::clone(&reading);
    fail_points::at(FailPoint::PutAside, move || {
        *hold.borrow_mut() = Some(other.reading(|| other.inspect("read")).unwrap());
        other.remove("read").unwrap();
        assert_eq!(other.collect().unwrap().packs_removed, 0, "somebody reads it");
    });
    store.collect().unwrap();
    let (reader, info) = reading.borrow_mut().take().unwrap();
    read(&reader, &info).unwrap();
}

#[test]
fn finds_a_pack_that_is_brought_back_between_two_looks() {
    let shared = Shared::new();
    let store = shared.open();
    save(&store, "read", &[1]);
    let (reader, info) = store.reading(|| store.inspect("read")).unwrap();
    let name = pack::pack_name(packs_in(&store.packs()).unwrap()[0]);
    let (place, aside) = (store.packs().join(&name), store.folder("aside").join(&name));
    fs::rename(&place, &aside).unwrap();
    fail_points::at(FailPoint::NotInItsPlace, move || fs::rename(&aside, &place).unwrap());
    read(&reader, &info).unwrap();
    // The index of a pack is found in the same way.
    let (place, aside) = (store.packs().join(&name), store.folder("aside").join(&name));
    fs::rename(&place, &aside).unwrap();
    fail_points::at(FailPoint::NotInItsPlace, move || fs::rename(&aside, &place).unwrap());
    let id = name.strip_suffix(".pack").unwrap().parse().unwrap();
    let index = Index::read(&[id], &store.pack_folders(), None, &[]).unwrap();
    assert_eq!(index.packs.len(), 1);
}
