//! Feeds inputs nobody would write to everything that reads what strangers send.
//!
//! Where a nightly toolchain and `cargo-fuzz` are installed, it searches by coverage; anywhere else
//! it mutates recorded inputs at random. Each target runs in a process of its own with little
//! memory, so that one that eats it, overflows its stack or never ends is caught as well.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bastide_testkit::fuzz::{self, TARGETS, Target, Verdict};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{Outcome, say, step, top};

/// Address space of a target, far more than any input it is given is worth.
const MEMORY: u64 = 2 << 30;

/// How long a target may go on after its time is up: longer than any one input should take.
const GRACE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long to search, all targets together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Search in this target only
    #[arg(long)]
    target: Option<String>,
    /// Where the random search starts; the same number finds the same inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Search at random even where coverage could guide it
    #[arg(long)]
    random: bool,
    /// Try the input in this file instead of searching
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
    /// Search in this very process; what the task starts for each target
    #[arg(long, hide = true, requires = "target")]
    here: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let targets = chosen(arguments)?;
    if let (Some(input), [target]) = (&arguments.input, targets.as_slice()) {
        return try_input(target, input);
    }
    let each = Duration::from_secs(arguments.seconds.div_ceil(targets.len() as u64));
    if let (true, [target]) = (arguments.here, targets.as_slice()) {
        return search_here(target, arguments.seed, each);
    }
    let asked = cargo_fuzz(&["--version"]).output();
    let guided = !arguments.random && asked.is_ok_and(|output| output.status.success());
    say(match guided {
        true => "searching by coverage: a nightly toolchain and cargo-fuzz are here",
        false => "searching at random (coverage needs a nightly toolchain and cargo-fuzz)",
    });
    let mut failed = Vec::new();
    for target in &targets {
        step(target.name);
        let found = match guided {
            true => search_by_coverage(target, each),
            false => search_apart(target, arguments.seed, each),
        };
        if let Err(error) = found {
            say(&error.to_string());
            failed.push(target.name);
        }
    }
    say(&format!("fuzz: targets={} failed={}", targets.len(), failed.len()));
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", ")).into()) }
}

fn chosen(arguments: &Arguments) -> Outcome<Vec<Target>> {
    let Some(name) = &arguments.target else { return Ok(TARGETS.to_vec()) };
    let known = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    let target =
        fuzz::target(name).ok_or_else(|| format!("no target {name}; there are {}", known()));
    Ok(vec![*target?])
}

fn try_input(target: &Target, input: &PathBuf) -> Outcome {
    let bytes = fs::read(input).map_err(|error| format!("{}: {error}", input.display()))?;
    match fuzz::try_once(target, &bytes) {
        Verdict::Refused => say("refused"),
        Verdict::Accepted => say("accepted"),
        Verdict::Broken(what) => return Err(what.into()),
    }
    Ok(())
}

/// Starts a process for the target and sees how it ends.
fn search_apart(target: &Target, seed: u64, time: Duration) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    let seconds = time.as_secs().to_string();
    command.args(["fuzz", "--here", "--target", target.name, "--seconds", &seconds]);
    command.args(["--seed", &seed.to_string()]);
    let mut child = command.current_dir(top()).spawn()?;
    let deadline = Instant::now() + time + GRACE;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                child.kill()?;
                child.wait()?;
                return Err(format!("it never ends on {}", current(target).display()).into());
            }
            // Nothing tells a parent when a child with a deadline ends; the wait is for a person.
            None => std::thread::park_timeout(Duration::from_millis(50)),
        }
    };
    match status.success() {
        true => Ok(()),
        false => Err(format!("{status} on {}", current(target).display()).into()),
    }
}

/// Searches at random, in this process.
fn search_here(target: &Target, seed: u64, time: Duration) -> Outcome {
    setrlimit(Resource::As, Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) })?;
    let path = current(target);
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let mut file = File::create(&path)?;
    let mut unwritten = None;
    let found = fuzz::run(target, seed, Instant::now() + time, |input| {
        let written = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(input));
        unwritten = unwritten.take().or(written.err());
    });
    if let Some(error) = unwritten {
        return Err(format!("{}: {error}", path.display()).into());
    }
    match found {
        Ok(tally) => {
            say(&format!("{} inputs, {} accepted", tally.runs, tally.accepted));
            Ok(())
        }
        Err((_, what)) => Err(what.into()),
    }
}

/// Lets `cargo-fuzz` search, starting from the recorded inputs.
fn search_by_coverage(target: &Target, time: Duration) -> Outcome {
    let corpus = folder().join("corpus").join(target.name);
    fs::create_dir_all(&corpus)?;
    for (index, seed) in (target.seeds)().into_iter().enumerate() {
        fs::write(corpus.join(format!("recorded-{index}")), seed)?;
    }
    let corpus = corpus.to_string_lossy().into_owned();
    let time = format!("-max_total_time={}", time.as_secs());
    let limits = ["-rss_limit_mb=2048", "-timeout=20", "-print_final_stats=1", "-verbosity=0"];
    let mut command =
        cargo_fuzz(&["run", "--target-dir", "target/fuzz/build", "any", &corpus, "--"]);
    command.arg(time).args(limits).env("FUZZ_TARGET", target.name);
    let status = command.current_dir(top()).status()?;
    if status.success() { Ok(()) } else { Err(format!("cargo fuzz: {status}").into()) }
}

fn cargo_fuzz(arguments: &[&str]) -> Command {
    // The toolchain of this repository is pinned, so the other one has to be asked for.
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz"]).args(arguments);
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn folder() -> PathBuf {
    top().join("target/fuzz")
}

/// The input that is being tried.
fn current(target: &Target) -> PathBuf {
    folder().join("current").join(target.name)
}
