//! How a container ended.

use std::fs;
use std::time::Duration;

use bastide::MachineExit;
use bastide_proto::warden::END_FILE;
use bollard::models::{ContainerState, ContainerStateStatusEnum};
use tokio::time::Instant;

use crate::state::State;

/// How long a warden may take to note an end.
const NOTE_DEADLINE: Duration = Duration::from_secs(2);

/// How long to wait before looking again.
const NOTE_POLL: Duration = Duration::from_millis(5);

/// What the warden noted, if it could. It sees the end a moment after it happened.
pub(crate) async fn noted_exit(state: &State) -> Option<MachineExit> {
    let deadline = Instant::now() + NOTE_DEADLINE;
    loop {
        let alive = state.warden.as_ref().and_then(|warden| warden.open().ok().flatten());
        let text = fs::read_to_string(state.dir.join(END_FILE)).ok();
        let note = text.and_then(|text| serde_json::from_str(&text).ok());
        if note.is_some() || alive.is_none() || Instant::now() >= deadline {
            return note;
        }
        tokio::time::sleep(NOTE_POLL).await;
    }
}

/// What the engine knows, if nobody else does.
pub(crate) fn engine_exit(state: &ContainerState) -> MachineExit {
    let code = state.exit_code.unwrap_or_default();
    let detail = match (state.oom_killed, state.status) {
        (Some(true), _) => "its container ran out of memory".to_owned(),
        (_, Some(ContainerStateStatusEnum::CREATED)) => "its container never started".to_owned(),
        _ => format!("its container ended with {code}"),
    };
    MachineExit::unrecorded(detail)
}
