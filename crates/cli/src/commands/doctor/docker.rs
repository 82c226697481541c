//! What `bastide doctor` says about Docker.

use bastide::Result;
use bastide_docker::{EngineAddress, EngineReport};
use serde_json::{Value, json};

use super::fix_of;
use crate::config;
use crate::ui::{hint, message};

/// The daemon that would be used, and what came of asking it.
pub(super) struct DockerFinding {
    address: Option<EngineAddress>,
    outcome: Result<EngineReport>,
}

impl DockerFinding {
    pub(super) async fn look() -> Self {
        match config::engine() {
            Ok(address) => {
                let outcome = EngineReport::of(&address).await;
                Self { address: Some(address), outcome }
            }
            Err(error) => Self { address: None, outcome: Err(error) },
        }
    }

    pub(super) fn works(&self) -> bool {
        self.outcome.is_ok()
    }

    fn place(&self) -> String {
        self.address.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    pub(super) fn object(&self) -> Value {
        match &self.outcome {
            Ok(checkup) => {
                let missing = checkup.missing.iter();
                let missing: Vec<_> =
                    missing.map(|(what, fix)| json!({ "what": what, "fix": fix })).collect();
                json!({
                    "works": true,
                    "address": self.place(),
                    "version": checkup.version,
                    "runtime": checkup.runtime,
                    "rootless": checkup.rootless,
                    "missing": missing,
                })
            }
            Err(error) => json!({
                "works": false,
                "address": self.place(),
                "missing": [{ "what": message(error), "fix": fix_of(error) }],
            }),
        }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let checkup = match &self.outcome {
            Ok(checkup) => checkup,
            Err(error) => {
                let mut lines = vec![format!("docker      is not there: {}", message(error))];
                lines.extend(hint(error).map(|hint| format!("  fix       {hint}")));
                return lines;
            }
        };
        let mut lines = vec![format!(
            "docker      works: version {} by {}, at {}",
            checkup.version,
            checkup.runtime,
            self.place()
        )];
        for (what, fix) in &checkup.missing {
            lines.push(format!("  missing   {what}"));
            lines.extend(fix.iter().map(|fix| format!("  fix       {fix}")));
        }
        lines
    }
}
