//! How a container ended.

use std::fs;
use std::time::Duration;

use bastide::MachineExit;
use bastide_proto::warden::END_FILE;
use bollard::models::{ContainerState, ContainerStateStatusEnum};
use tokio::time::Instant;

use crate::state::State;

/// How long a warden may take to note an end.
const NOTE: Duration = Duration::from_secs(2);

/// How long to wait before looking again.
const AGAIN: Duration = Duration::from_millis(5);

/// What the warden noted, if it could. It sees the end a moment after it happened.
pub(crate) async fn noted(state: &State) -> Option<MachineExit> {
    let deadline = Instant::now() + NOTE;
    loop {
        let alive = state.warden.as_ref().and_then(|warden| warden.open().ok().flatten());
        let text = fs::read_to_string(state.dir.join(END_FILE)).ok();
        let note = text.and_then(|text| serde_json::from_str(&text).ok());
        if note.is_some() || alive.is_none() || Instant::now() >= deadline {
            return note;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What the engine knows, if nobody else does.
pub(crate) fn how_it_ended(state: &ContainerState) -> MachineExit {
    let code = state.exit_code.unwrap_or_default();
    let detail = match (state.oom_killed, state.status) {
        (Some(true), _) => "its container ran out of memory".to_owned(),
        (_, Some(ContainerStateStatusEnum::CREATED)) => "its container never started".to_owned(),
        _ => format!("its container ended with {code}"),
    };
    MachineExit::unrecorded(detail)
}
