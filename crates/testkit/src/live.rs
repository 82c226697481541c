//! The same calls on the reference's clients and on ours, side by side.
//!
//! A scenario is data: what is on the host, a manifest, and calls in order. One driver performs it on
//! the reference (`live/reference.py`, in a process of its own), one on our sessions; what comes back
//! is made alike in ids, paths and times, and compared field by field. A difference that no rule of
//! `docs/differences.md` names fails the run, and so does a rule that nothing needed.

mod calls;
mod compare;
mod normalize;
mod opened;
mod ours;
mod reference;
mod report;
mod rules;
mod scenario;
mod script;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use bastide::Backend;
use serde_json::{Value, json};

use crate::vectors::tree::{self, Modes};

pub use report::Report;
pub use rules::Rule;

use ours::BastideClient;
use reference::Reference;
use report::{CallVerdict, Done, judge};
use scenario::Scenario;

/// How much the first thread of a program has, too: calls that are made of calls are deep where nothing is optimized.
const STACK: usize = 8 << 20;

/// What a run is about.
#[derive(Debug)]
pub struct Options {
    /// Which backend of each side.
    pub side: LiveBackend,
    /// Only scenarios whose id holds this.
    pub only: Option<String>,
    /// Each of how many is run, where not all of them are.
    pub every: Option<usize>,
    /// Scripts that this seed makes, instead of the scenarios.
    pub seed: Option<u64>,
    /// How many scenarios are run at once.
    pub jobs: usize,
    /// The interpreter that has the reference.
    pub python: PathBuf,
    /// Ours.
    pub backend: Arc<dyn Backend>,
}

/// The backends that can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveBackend {
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

impl LiveBackend {
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
    let rules = rules::read(&options.side, scenario::own_name())?;
    let mut scenarios = match options.seed {
        Some(seed) => script::scripts(seed, &options.side),
        None => scenario::read(options.side.name())?,
    };
    if let Some(only) = &options.only {
        scenarios.retain(|scenario| scenario.id.contains(only.as_str()));
    }
    if let Some(every) = options.every {
        scenarios = sample(scenarios, every);
    }
    let is_whole = options.only.is_none() && options.seed.is_none() && options.every.is_none();
    let mut report = Report::new(options.side.name(), rules.clone(), is_whole);
    let ours = BastideClient::new(Arc::clone(&options.backend), options.side.clone());
    let next = AtomicUsize::new(0);
    let (done, outcomes) = channel();
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            let done = done.clone();
            let (scenarios, rules, next, ours) = (&scenarios, &rules, &next, &ours);
            let worker = thread::Builder::new().stack_size(STACK);
            worker.spawn_scoped(scope, move || {
                if let Err(error) = work(options, scenarios, rules, next, ours, &done) {
                    // Nobody listens any more where another has failed before.
                    drop(done.send(Err(error)));
                }
            })?;
        }
        drop(done);
        for outcome in outcomes {
            let done = outcome.inspect_err(|_| {
                next.store(scenarios.len(), Ordering::Relaxed);
            })?;
            report.add(&done, &mut tell);
        }
        Ok(report)
    })
}

/// Each of so many scenarios, and whichever is the first of its file or the first to make some call: a few of them still try
/// everything that all of them try.
fn sample(scenarios: Vec<Scenario>, every: usize) -> Vec<Scenario> {
    let mut tried = BTreeSet::new();
    let mut chosen = Vec::new();
    for (number, scenario) in scenarios.into_iter().enumerate() {
        let tries: Vec<_> = scenario.tries().into_iter().map(str::to_owned).collect();
        let is_first = tries.iter().any(|tried_now| !tried.contains(tried_now));
        if is_first || number.is_multiple_of(every) {
            tried.extend(tries);
            chosen.push(scenario);
        }
    }
    chosen
}

/// How often the reference is asked once more where its client for containers differs: under load it loses what a command said. Ours is
/// asked once.
const REPEATS: usize = 2;

/// Runs scenarios on both sides until none is left.
fn work(
    options: &Options,
    scenarios: &[Scenario],
    rules: &[Rule],
    next: &AtomicUsize,
    ours: &BastideClient,
    done: &Sender<io::Result<Done>>,
) -> io::Result<()> {
    let side = &options.side;
    let mut reference = Reference::start(&options.python, side)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(scenario) = scenarios.get(index) else { return Ok(()) };
        let own = in_scratch(scenario, side, |line| Ok(runtime.block_on(ours.perform(line))))?;
        let most = if *side == LiveBackend::Local { 0 } else { REPEATS };
        let mut repeats = 0;
        let judged = loop {
            let theirs = in_scratch(scenario, side, |line| reference.perform(line))?;
            let judged = judge(rules, scenario, &theirs, &own);
            if repeats == most || judged.iter().all(CallVerdict::is_alike) {
                break judged;
            }
            repeats += 1;
        };
        if done.send(Ok(Done { judged, repeats })).is_err() {
            return Ok(());
        }
    }
}

/// Performs a scenario where nothing else is, and makes the outcome comparable.
fn in_scratch(
    scenario: &Scenario,
    side: &LiveBackend,
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
    let names = normalize::Names::of(&answer, &line, &tmp, side);
    let calls = answer["calls"].as_array().cloned().unwrap_or_default();
    // The session is opened first.
    let steps =
        [Value::Null].into_iter().chain(line["steps"].as_array().cloned().unwrap_or_default());
    let calls = calls.into_iter().zip(steps).map(|(call, step)| names.call(call, &step)).collect();
    let left = match side {
        LiveBackend::Local => Some(names.value(left(&tmp)?)),
        LiveBackend::Docker { .. } => None,
    };
    remove(&tmp);
    Ok(Outcome { calls, left })
}

/// What is in the scenario's folder, but for snapshots, which are compared by their members.
fn left(tmp: &Path) -> io::Result<Value> {
    // Somebody who is not root cannot look into what is closed.
    let closed = opened::below(tmp)?;
    let nodes = match tree::list(tmp, Modes::All) {
        Ok(nodes) => nodes,
        // Such as a path that is longer than a path may be.
        Err(error) => return Ok(json!({"unlisted": error.kind().as_str()})),
    };
    let is_reported = |node: &&Value| {
        let path = node["path"].as_str().unwrap_or_default();
        !path.starts_with("snapshots/")
    };
    let mut reported = serde_json::Map::new();
    for node in nodes.iter().filter(is_reported) {
        let path = node["path"].as_str().unwrap_or_default().to_owned();
        let mut node = node.clone();
        if let Some(mode) = closed.get(&path) {
            node["mode"] = format!("{mode:04o}").into();
        }
        if let Some(object) = node.as_object_mut() {
            object.shift_remove("path");
        }
        reported.insert(path, node);
    }
    Ok(json!(reported))
}

/// Folders that nobody may enter are entered first.
fn remove(tmp: &Path) {
    let opened = Command::new("chmod").args(["-R", "u+rwX"]).arg(tmp).output();
    drop(opened);
    // The folder goes with its owner in any case; what cannot be removed is the system's to clear.
    drop(fs::remove_dir_all(tmp));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_scenarios_try_every_call_and_every_file() {
        let tries = |scenarios: &[Scenario]| -> BTreeSet<String> {
            scenarios.iter().flat_map(Scenario::tries).map(str::to_owned).collect()
        };
        for backend in ["local", "docker"] {
            let all = scenario::read(backend).unwrap();
            let (whole, wanted) = (all.len(), tries(&all));
            let few = sample(all, 16);
            assert_eq!(tries(&few), wanted, "{backend}");
            assert!(few.len() * 8 < whole, "{backend}: {} of {whole}", few.len());
        }
    }
}
