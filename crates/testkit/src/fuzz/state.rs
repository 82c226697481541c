//! What a session's state consists of.

use bastide_model::lax::{self, Dump, FromInput};
use bastide_model::snapshot::{FingerprintRecord, Snapshot, SnapshotSpec};
use serde_json::Value;

use super::seeds::recorded_bytes;
use super::{Target, Verdict, equal};

pub(super) const TARGET: Target = Target {
    name: "state_json",
    check: |input| {
        let record = FingerprintRecord::parse(input);
        if let Ok(record) = record {
            let again = FingerprintRecord::parse(record.to_text().as_bytes());
            if again.as_ref().ok() != Some(&record) {
                return Verdict::Broken(format!("{record:?} became {again:?}"));
            }
        }
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return Verdict::Refused };
        match survives::<Snapshot>(&value) {
            Verdict::Refused => survives::<SnapshotSpec>(&value),
            verdict => verdict,
        }
    },
    seeds: || {
        let mut seeds = recorded_bytes("snapshot", "snapshot");
        seeds.extend(recorded_bytes("snapshot", "spec"));
        seeds.extend(recorded_bytes("snapshot", "payload"));
        seeds
    },
    words: &[
        "\"type\":",
        "\"local\"",
        "\"noop\"",
        "\"remote\"",
        "\"id\":",
        "\"base_path\":",
        "null",
        "{",
        "}",
        "../",
    ],
};

fn survives<T: FromInput + Dump>(value: &Value) -> Verdict {
    let Ok(read) = lax::read::<T>(value) else { return Verdict::Refused };
    let written = match read.dump() {
        Ok(written) => written,
        Err(error) => return Verdict::Broken(format!("it cannot be written: {error}")),
    };
    match lax::read::<T>(&written).and_then(|again| again.dump()) {
        Ok(rewritten) => equal("state", &written, &rewritten),
        Err(error) => Verdict::Broken(format!("what it wrote is refused: {error}")),
    }
}
