//! What `bastide doctor` says about mounts of cloud storage.

use std::fs::File;

use bastide::Client;
use serde_json::{Value, json};

const FUSE: &str = "/dev/fuse";

/// One strategy, and what is missing for it, if anything is.
pub(super) struct StrategyFinding {
    strategy: &'static str,
    missing: Option<String>,
}

/// What each strategy needs of this machine.
pub(super) fn look(client: &Client, has_docker: bool) -> Vec<StrategyFinding> {
    let fuse = File::options().read(true).write(true).open(FUSE);
    let fuse = fuse.err().map(|error| format!("{FUSE} cannot be opened: {error}"));
    let no_docker = || (!has_docker).then(|| "there is no Docker daemon".to_owned());
    let host = match client.mounts_from_outside() {
        true => fuse.clone(),
        false => Some("this build does not mount from outside".to_owned()),
    };
    vec![
        StrategyFinding { strategy: "host", missing: host },
        StrategyFinding { strategy: "in_container", missing: no_docker().or(fuse) },
        StrategyFinding { strategy: "docker_volume", missing: no_docker() },
    ]
}

impl StrategyFinding {
    pub(super) fn object(&self) -> Value {
        json!({ "strategy": self.strategy, "works": self.missing.is_none(), "missing": self.missing })
    }

    pub(super) fn line(&self) -> String {
        let outcome = match (self.strategy, &self.missing) {
            (_, Some(why)) => format!("does not: {why}"),
            ("in_container", None) => "works in containers whose image has the program".to_owned(),
            ("host", None) if !rustix::process::geteuid().is_root() => {
                "works in local sessions; in containers for root alone".to_owned()
            }
            ("docker_volume", None) => "works with the volume drivers the daemon has".to_owned(),
            (_, None) => "works".to_owned(),
        };
        format!("mounts      {}: {outcome}", self.strategy)
    }
}
