//! What a session's state consists of.

use bastide_model::lax::{self, Dump, FromInput};
use bastide_model::snapshot::{FingerprintRecord, Snapshot, SnapshotSpec};
use bastide_model::{Registry, SessionState};
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

pub(super) const SESSION: Target = Target {
    name: "session_state",
    check: |input| {
        let Ok(value) = serde_json::from_slice::<Value>(input) else { return Verdict::Refused };
        let registry = Registry::builtin();
        let Ok(state) = SessionState::parse(value, registry) else { return Verdict::Refused };
        drop(state.check_resumable());
        let Ok(stored) = state.serialize(registry) else { return Verdict::Refused };
        if stored["manifest"]["extra_path_grants"].to_string().contains("\"host_path\":") {
            return Verdict::Broken("a path of the host was stored".to_owned());
        }
        let again = SessionState::parse(stored.clone(), registry);
        match again.and_then(|state| state.serialize(registry)) {
            Ok(mut again) => {
                // A state that lost credentials gets another name each time.
                if state.is_mount_authority_redacted() {
                    again["session_id"] = stored["session_id"].clone();
                }
                equal("state", &stored, &again)
            }
            Err(error) => Verdict::Broken(format!("what was stored is refused: {error}")),
        }
    },
    seeds: || recorded_bytes("session_state", "payload"),
    words: &[
        "\"type\":",
        "\"docker\"",
        "\"unix_local\"",
        "\"local\"",
        "\"exposed_ports\":",
        "\"extra_path_grants\":",
        "\"host_path\":",
        "\"network_mode\":",
        "\"__openai_agents_redacted_mount_authority\":",
        "\"__openai_agents_redacted_host_path_grant_paths\":",
        "\"machine\":",
        "\"receipt\":",
        "null",
        "true",
        "{",
        "}",
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
