//! `cargo xtask test`: everything that proves the project works.

pub(crate) mod engine;
mod inside;
mod packages;
pub(crate) mod privileges;
mod stores;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bench::reference;
use crate::shell::{Outcome, cargo, read, run as run_command, say, step, works};
use crate::{live, python};
use engine::Engine;
use privileges::{Means, Skipped};

/// The package of the local backend.
const LOCAL: &str = "bastide-local";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run the big counts, not a tenth of them
    #[arg(long)]
    pub(crate) full: bool,
    /// Where random tests start, to run them again as they were
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Fail where a suite had to be skipped that this machine could run
    #[arg(long)]
    pub(crate) require_all: bool,
}

/// Runs every test.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let means = Means::find();
    step("what this will do to the machine");
    let missing = packages::missing(arguments.full || arguments.require_all);
    say(&means.announcement(&missing));
    say(&engine::announcement(missing.contains(&"docker.io")));
    packages::install(&missing, means.is_root())?;
    // Trials that this machine cannot do are named here, by every run of every suite.
    let skipped = tempfile::NamedTempFile::new()?;
    std::fs::set_permissions(skipped.path(), std::fs::Permissions::from_mode(0o666))?;

    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let settings = Settings { full: arguments.full, seed, skipped: skipped.path() };
    say(&format!("seed:    {seed} (run again with `--seed {seed}`)"));

    step("servers of object storage");
    stores::install();

    step("a Docker daemon");
    let engine = Engine::prepare()?;
    if let Err(why) = &engine {
        say(&format!("skipped: {why}"));
    }

    step("unit and integration tests");
    run_tests(settings, engine.as_ref().ok())?;
    step("the local suites in a container without privileges");
    match &engine {
        Ok(engine) => inside::suites(&local_binary("trials", &[])?, engine, settings)?,
        Err(why) => say(&format!("skipped: {why}")),
    }
    let docker = engine.map(drop);
    step("examples in the documentation");
    run_command(&mut cargo(&["test", "--workspace", "--doc", "--quiet"]))?;
    step("the recorded cases of the reference");
    run_command(&mut cargo(&["xtask", "vectors"]))?;
    step("some of the calls that are compared with the reference while it runs");
    match reference() {
        Ok(_) => live::run_some()?,
        Err(why) => {
            say(&format!("skipped: {why}"));
            settings.note_skipped("skipped the live comparison: the reference is not installed")?;
        }
    }

    step("the Python package");
    python::run(&python::Arguments::default())?;

    // Whoever runs this has just run the suites as themselves; the other kind of user is missing.
    let other = means.other();
    step(&format!("the suites of the local backend and of runs as {other}"));
    let mut ran: Skipped = Ok(());
    for (package, name) in [(LOCAL, "trials"), (LOCAL, "leaks"), ("bastide-runs", "runs")] {
        let program = test_binary(package, name, &[])?;
        // Once more, as everywhere: what passes then is named, and is a bug to be fixed.
        let once = means.run_as_other(&program, settings).or_else(|why| {
            say(&format!("flaky?   {name} as {other} failed ({why}); once more"));
            means.run_as_other(&program, settings)
        });
        ran = ran.and(once?);
    }
    let mut lines: Vec<_> =
        std::fs::read_to_string(skipped.path())?.lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    if let Err(reason) = ran {
        lines.push(format!("skipped the local suites as {other}: {reason}"));
    }
    if let Err(reason) = docker {
        lines.push(format!("skipped the local suites in a container (T15): {reason}"));
        lines.push(format!("skipped the suites of Docker: {reason}"));
    }
    if lines.is_empty() {
        say("\nall tests passed, nothing was skipped");
        return Ok(());
    }
    let list = lines.join("\n");
    // What this machine has no program for it could not run; everything else it could.
    let could = |line: &String| !line.ends_with("is not installed");
    if arguments.require_all && lines.iter().any(could) {
        return Err(format!("{} skipped:\n{list}", lines.len()).into());
    }
    say(&format!("\nall tests passed; {} skipped:\n{list}", lines.len()));
    Ok(())
}

/// Holds a daemon for tests that are run one by one.
pub(crate) fn hold_engine() -> Outcome {
    let engine = Engine::prepare()??;
    let (name, host) = engine.variable();
    say(&format!("export {name}={host}"));
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// What tests are told through their environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings<'a> {
    full: bool,
    seed: u64,
    /// The file in which trials that are skipped are counted.
    skipped: &'a Path,
}

impl Settings<'_> {
    /// Counts what this machine cannot run.
    pub(crate) fn note_skipped(self, line: &str) -> Outcome {
        use std::io::Write;
        let mut list = std::fs::File::options().append(true).open(self.skipped)?;
        Ok(writeln!(list, "{line}")?)
    }

    /// The variables that tell them.
    pub(crate) fn variables(self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("BASTIDE_TEST_SEED", self.seed.to_string()),
            ("BASTIDE_TEST_SKIPPED", self.skipped.display().to_string()),
        ];
        if self.full {
            variables.push(("BASTIDE_TEST_FULL", "1".to_owned()));
        }
        variables
    }
}

fn run_tests(settings: Settings<'_>, engine: Option<&Engine>) -> Outcome {
    // Nextest runs every test in a process of its own, and all of them at once.
    let nextest = works(&mut cargo(&["nextest", "--version"]));
    let mut command = if nextest {
        cargo(&["nextest", "run", "--workspace", "--no-fail-fast"])
    } else {
        let targets = ["--lib", "--bins", "--tests", "--examples", "--no-fail-fast"];
        let mut command = cargo(&["test", "--workspace"]);
        command.args(targets);
        command
    };
    command.envs(settings.variables()).envs(engine.map(Engine::variable));
    run_command(&mut command)
}

/// A test program of the local backend, built with these variables.
pub(crate) fn local_binary(name: &str, variables: &[(&str, &Path)]) -> Outcome<PathBuf> {
    test_binary(LOCAL, name, variables)
}

/// A test program of some package, built.
fn test_binary(package: &str, name: &str, variables: &[(&str, &Path)]) -> Outcome<PathBuf> {
    let build = ["test", "--package", package, "--test", name, "--no-run"];
    let mut build = cargo(&build);
    build.envs(variables.iter().copied());
    let messages = read(build.arg("--message-format=json"))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| {
            let is_it = message["target"]["name"] == name;
            message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
        })
        .ok_or_else(|| format!("cargo built no test program {name} of {package}").into())
}
