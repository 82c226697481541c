//! What a warden notes about the end of its sandbox.

use std::time::{SystemTime, UNIX_EPOCH};

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitRecord {
    /// Somebody asked for it.
    Stopped,
    /// The guest ended, and its first process with it.
    GuestEnded,
    /// A signal ended its first process, and all others with it.
    Killed { signal: i32 },
    /// Whoever started it was gone before it could live on without.
    Abandoned,
    /// Its lease ran out.
    Expired,
}

impl ExitRecord {
    /// The note as it is kept. There is nothing in it that would need escaping.
    pub(super) fn to_json(self) -> String {
        let at_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let (reason, detail) = match self {
            Self::Stopped => ("stopped", "it was asked to end".to_owned()),
            Self::GuestEnded => ("agent_lost", "its guest ended".to_owned()),
            Self::Killed { signal } => {
                ("agent_lost", format!("signal {signal} ended its first process"))
            }
            Self::Expired => ("expired", "its lease ran out".to_owned()),
            Self::Abandoned => ("abandoned", "whoever started it ended too early".to_owned()),
        };
        format!("{{\"at_ms\":{at_ms},\"reason\":\"{reason}\",\"detail\":\"{detail}\"}}\n")
    }
}
