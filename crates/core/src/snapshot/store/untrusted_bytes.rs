//! What a store makes of bytes that anybody could have written; for whoever tries them.

use super::chunk::ChunkId;
use super::pack::PackIndex;
use super::record;
use super::tree::{Content, TreeReader};
use crate::Result;

/// The index of a pack, written again; nothing if it is refused.
#[must_use]
pub fn pack_index(bytes: &[u8]) -> Option<Vec<u8>> {
    PackIndex::decode(bytes).ok()?.encode().ok()
}

/// An index to start from.
#[must_use]
pub fn some_pack_index() -> Vec<u8> {
    let block = super::pack::Block {
        stored: 5,
        compressed: None,
        chunks: vec![(ChunkId::of(b"ab"), 2), (ChunkId::of(b"cde"), 3)],
    };
    PackIndex { blocks: vec![block] }.encode().unwrap_or_default()
}

/// How many entries a list has; nothing if it is refused.
#[must_use]
pub fn list(bytes: &[u8]) -> Option<u64> {
    struct SingleChunk<'a>(&'a [u8]);
    impl Content for SingleChunk<'_> {
        fn chunk(&mut self, _: &ChunkId) -> Result<Vec<u8>> {
            Ok(self.0.to_vec())
        }
    }
    let mut list = TreeReader::new(SingleChunk(bytes), vec![ChunkId([0; 32])]);
    let mut entries = 0;
    while list.next().ok()?.is_some() {
        entries += 1;
    }
    Some(entries)
}

/// A list to start from.
#[must_use]
pub fn some_list() -> Vec<u8> {
    use super::tree::{Entry, FilePart, Kind, TreeRecord};
    let time = bastide_proto::files::FileTime { seconds: 1, nanos: 2 };
    let entry = |depth, name: &str, kind| Entry {
        depth,
        name: serde_bytes::ByteBuf::from(name.as_bytes()),
        kind,
        mode: 0o644,
        uid: 1,
        gid: 2,
        modified: time,
        attributes: Vec::new(),
    };
    let file_parts = vec![FilePart::Chunk { id: ChunkId::of(b"ab"), length: 2 }, FilePart::Hole(3)];
    let entries = [
        entry(0, "", Kind::Dir),
        entry(1, "a", Kind::Dir),
        entry(2, "b", Kind::File { size: 5, shared: true, file_parts }),
        entry(2, "c", Kind::Link { entry: 2 }),
        entry(1, "d", Kind::Symlink { target: serde_bytes::ByteBuf::from(b"x".as_slice()) }),
    ];
    let mut bytes = Vec::new();
    for entry in entries {
        let record = bastide_proto::encode(&TreeRecord::Entry(entry)).unwrap_or_default();
        bytes.extend(u32::try_from(record.len()).unwrap_or(0).to_le_bytes());
        bytes.extend(record);
    }
    bytes
}

/// A record of the snapshot `a`, written again; nothing if it is refused.
#[must_use]
pub fn snapshot_record(bytes: &[u8]) -> Option<Vec<u8>> {
    record::encode(&record::decode(bytes, "a").ok()?).ok()
}

/// A record to start from.
#[must_use]
pub fn some_snapshot_record() -> Vec<u8> {
    let info = record::SnapshotInfo {
        name: "a".to_owned(),
        fingerprint: record::fingerprint(&[]),
        created_at_ms: 1,
        session: None,
        entries: 1,
        bytes: 0,
        left_out: Vec::new(),
        tree: Vec::new(),
    };
    record::encode(&info).unwrap_or_default()
}
