//! The same calls on the reference's clients and on ours, side by side.
//!
//! A scenario is data: what is on the host, a manifest, and calls in order. One driver performs it on
//! the reference (`live/reference.py`, in a process of its own), one on our sessions; what comes back
//! is made alike in ids, paths and times, and compared field by field. A difference that no rule of
//! `docs/differences.md` names fails the run, and so does a rule that nothing needed.

mod alike;
mod calls;
mod compare;
mod ours;
mod reference;
mod report;
mod rules;
mod scenario;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bastide::Backend;
use serde_json::{Value, json};

use crate::vectors::tree::{self, Modes};

pub use report::Report;
pub use rules::Rule;

use ours::Ours;
use reference::Reference;
use scenario::Scenario;

/// What a run is about.
#[derive(Debug)]
pub struct Options {
    /// Which backend of each side.
    pub side: Side,
    /// Only scenarios whose id holds this.
    pub only: Option<String>,
    /// In which order scenarios are run.
    pub seed: u64,
    /// The interpreter that has the reference.
    pub python: PathBuf,
    /// Ours.
    pub backend: Arc<dyn Backend>,
}

/// The backends that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Side {
    /// Sessions on this machine.
    Local,
    /// Containers of an image, on a daemon.
    Docker {
        /// Where the daemon is.
        host: String,
        /// Of what containers are made.
        image: String,
    },
}

impl Side {
    /// The word users write.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Docker { .. } => "docker",
        }
    }
}

/// What one side made of a scenario.
struct Outcome {
    calls: Vec<Value>,
    /// What is left on the host, where the workspace is a folder of it.
    left: Option<Value>,
}

/// Runs every scenario on both sides. `tell` hears of each call that differs as soon as it is known.
///
/// # Errors
///
/// A file of the project cannot be read, or the reference cannot be run. What a scenario makes of
/// either side is in the report.
pub fn run(options: &Options, mut tell: impl FnMut(&str)) -> io::Result<Report> {
    let rules = rules::read(&options.side)?;
    let mut scenarios = scenario::read(options.side.name())?;
    let all = options.only.is_none();
    if let Some(only) = &options.only {
        scenarios.retain(|scenario| scenario.id.contains(only.as_str()));
    }
    shuffle(&mut scenarios, options.seed);
    let mut reference = Reference::start(&options.python, &options.side)?;
    let ours = Ours::new(Arc::clone(&options.backend), options.side.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::new(options.side.name(), rules, all);
    for scenario in &scenarios {
        let theirs = in_scratch(scenario, &options.side, |line| reference.perform(line))?;
        let own =
            in_scratch(scenario, &options.side, |line| Ok(runtime.block_on(ours.perform(line))))?;
        report.add(scenario, &theirs, &own, &mut tell);
    }
    Ok(report)
}

/// Performs a scenario where nothing else is, and makes the outcome comparable.
fn in_scratch(
    scenario: &Scenario,
    side: &Side,
    perform: impl FnOnce(&Value) -> io::Result<Value>,
) -> io::Result<Outcome> {
    let folder = tempfile::Builder::new().prefix("bastide-live-").tempdir()?;
    let tmp = folder.path().canonicalize()?;
    if let Some(line) = &scenario.host {
        let made = Command::new("sh").args(["-ec", line]).current_dir(&tmp).status()?;
        if !made.success() {
            let message = format!("{}: its host line ended with {made}", scenario.id);
            return Err(io::Error::other(message));
        }
    }
    let line = scenario.line(side, &tmp);
    let answer = perform(&line)?;
    let names = alike::Names::of(&answer, &line, &tmp);
    let calls = answer["calls"].as_array().cloned().unwrap_or_default();
    let calls = calls.into_iter().map(|call| names.call(call)).collect();
    let left = match side {
        Side::Local => Some(names.value(left(&tmp)?)),
        Side::Docker { .. } => None,
    };
    remove(&tmp);
    Ok(Outcome { calls, left })
}

/// What is in the scenario's folder, but for snapshots, which are compared by their members.
fn left(tmp: &Path) -> io::Result<Value> {
    let nodes = match tree::list(tmp, Modes::Shown) {
        Ok(nodes) => nodes,
        // Such as a path that is longer than a path may be.
        Err(error) => return Ok(json!({"unlisted": error.kind().as_str()})),
    };
    let is_told = |node: &&Value| {
        let path = node["path"].as_str().unwrap_or_default();
        !path.starts_with("snapshots/")
    };
    let mut told = serde_json::Map::new();
    for node in nodes.iter().filter(is_told) {
        let path = node["path"].as_str().unwrap_or_default().to_owned();
        let mut node = node.clone();
        if let Some(object) = node.as_object_mut() {
            object.shift_remove("path");
        }
        told.insert(path, node);
    }
    Ok(json!(told))
}

/// Folders that nobody may enter are entered first.
fn remove(tmp: &Path) {
    let opened = Command::new("chmod").args(["-R", "u+rwX"]).arg(tmp).output();
    drop(opened);
    // The folder goes with its owner in any case; what cannot be removed is the system's to clear.
    drop(fs::remove_dir_all(tmp));
}

/// Mixes by a seed, always alike.
fn shuffle(scenarios: &mut [Scenario], seed: u64) {
    if seed == 0 {
        return;
    }
    let mut state = seed;
    for last in (1..scenarios.len()).rev() {
        // Xorshift, as good as needed to find what depends on the order.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).unwrap_or(0);
        scenarios.swap(last, other);
    }
}
