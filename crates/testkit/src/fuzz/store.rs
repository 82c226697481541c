//! What a snapshot store reads: indexes of packs, lists, records.

use bastide::snapshot::store::untrusted_bytes;

use super::{Target, Verdict, equal};

pub(super) const PACK_INDEX: Target = Target {
    name: "pack_index",
    check: |input| match untrusted_bytes::pack_index(input) {
        None => Verdict::Refused,
        Some(again) => {
            equal("an index", &untrusted_bytes::pack_index(&again), &Some(again.clone()))
        }
    },
    seeds: || vec![untrusted_bytes::some_pack_index()],
    words: &["\u{1}", "\0"],
};

pub(super) const LIST: Target = Target {
    name: "snapshot_list",
    check: |input| match untrusted_bytes::list(input) {
        None => Verdict::Refused,
        // Each entry takes a few bytes at least.
        Some(entries) if entries > input.len() as u64 => {
            Verdict::Broken(format!("{entries} entries in {} bytes", input.len()))
        }
        Some(_) => Verdict::Accepted,
    },
    seeds: || vec![untrusted_bytes::some_list()],
    words: &["\0\0\0", "a"],
};

pub(super) const RECORD: Target = Target {
    name: "snapshot_record",
    check: |input| match untrusted_bytes::snapshot_record(input) {
        None => Verdict::Refused,
        Some(again) => {
            equal("a record", &untrusted_bytes::snapshot_record(&again), &Some(again.clone()))
        }
    },
    seeds: || vec![untrusted_bytes::some_snapshot_record()],
    words: &["bastide-snapshot 1 ", "\"tree\"", "\n"],
};
