//! `cargo xtask test`: everything that proves the project works.

pub(crate) mod engine;
mod inside;
pub(crate) mod packages;
pub(crate) mod privileges;
pub(crate) mod stores;
mod suites;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::bench::reference;
use crate::shell::{Outcome, cargo, read, run as run_command, say, step, top, with_signals, works};
use crate::{cluster, dist, first_hour, live, python};
use engine::Engine;
use privileges::Privileges;
use suites::Suites;

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
    /// Run every suite in pods of a Kubernetes cluster, not a part of them
    #[arg(long)]
    pub(crate) kubernetes: bool,
    /// Fail where a suite had to be skipped that this machine could run
    #[arg(long)]
    pub(crate) require_all: bool,
}

/// Runs every test.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let means = Privileges::find();
    step("what this will do to the machine");
    let missing = packages::missing(arguments.full || arguments.require_all);
    say(&means.announcement(&missing));
    say(&engine::announcement(missing.contains(&"docker.io")));
    say(&cluster::announcement());
    say(&format!("build:   every crate with its tests, below {}", top().join("target").display()));
    say(
        "leave:   that folder, with servers and a Python environment for tests; packages that were installed stay",
    );
    let nextest = works(&mut cargo(&["nextest", "--version"]));
    let runner = if nextest { "cargo nextest" } else { "cargo test, as there is no cargo-nextest" };
    say(&format!("runner:  {runner}"));
    packages::install(&missing, means.is_root())?;
    // Trials that this machine cannot do are named here, by every run of every suite.
    let skipped = tempfile::NamedTempFile::new()?;
    fs::set_permissions(skipped.path(), fs::Permissions::from_mode(0o666))?;
    // Whatever tests leave goes at the end. Other users' tests look into it, too.
    let scratch = tempfile::Builder::new().prefix("bt-").tempdir()?;
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777))?;

    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let settings =
        Settings { full: arguments.full, seed, skipped: skipped.path(), scratch: scratch.path() };
    say(&format!("seed:    {seed} (run again with `--seed {seed}`)"));

    step("servers of object storage");
    stores::install(arguments.full);

    step("a Docker daemon");
    let engine = Engine::prepare()?;
    if let Err(why) = &engine {
        say(&format!("skipped: {why}"));
    }
    step("a Kubernetes cluster");
    let cluster = cluster::TestCluster::prepare(arguments.full || arguments.kubernetes);
    if let Err(why) = &cluster {
        say(&format!("skipped: {why}"));
    }
    let (suites, notes) = run_suites(arguments, &means, settings, engine, cluster);
    let mut lines: Vec<_> =
        fs::read_to_string(skipped.path())?.lines().map(str::to_owned).collect();
    lines.extend(notes);
    lines.sort();
    lines.dedup();
    suites.sum_up()?;
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

/// Runs every suite, whatever became of the ones before; and says which could not be run.
fn run_suites(
    arguments: &Arguments,
    means: &Privileges,
    settings: Settings<'_>,
    engine: Result<Engine, String>,
    cluster: Result<cluster::TestCluster, String>,
) -> (Suites, Vec<String>) {
    let mut notes = Vec::new();
    if let Err(why) = &cluster {
        notes.push(format!("skipped the suites of Kubernetes: {why}"));
    }
    let in_all = cluster.as_ref().ok().filter(|cluster| cluster.is_for_all());
    let others = [(LOCAL, "trials"), (LOCAL, "leaks"), ("bastide-runs", "runs")];
    let mut suites = Suites::of(
        6 + others.len()
            + usize::from(in_all.is_some())
            + usize::from(engine.is_ok())
            + 2 * usize::from(arguments.full),
    );
    suites.run("unit and integration tests", || {
        run_tests(settings, engine.as_ref().ok(), cluster.as_ref().ok())
    });
    suites.run("the local suites in a container without privileges", || match &engine {
        Ok(engine) => inside::suites(&local_binary("trials", &[])?, engine, settings),
        Err(why) => {
            say(&format!("skipped: {why}"));
            notes.push(format!("skipped the local suites in a container (T15): {why}"));
            notes.push(format!("skipped the suites of Docker: {why}"));
            Ok(())
        }
    });
    if let Some(cluster) = in_all {
        // Everything else that uses it is over.
        suites.run("a cluster whose parts are killed", || {
            let mut command = cargo(&["test", "--workspace", "--test", "faults"]);
            command.envs(settings.variables()).env("BASTIDE_TEST_FAULTS", "1");
            command.envs(cluster.variables()).env("TMPDIR", settings.scratch);
            command.args(["--", "--test-threads=1"]);
            run_command(&mut with_signals(command))
        });
    }
    let share = if arguments.full { "all" } else { "some" };
    let has_reference = |run: &dyn Fn() -> Outcome| match reference() {
        Ok(_) => run(),
        Err(why) => {
            say(&format!("skipped: {why}"));
            settings.note_skipped("skipped the live comparison: the reference is not installed")
        }
    };
    if let Ok(engine) = &engine {
        suites.run(
            &format!("{share} of the calls that are compared with the reference in containers"),
            || has_reference(&|| live::run_in_containers(arguments.full, engine)),
        );
    }
    // It takes memory, and nothing needs it from here on.
    drop((engine, cluster));
    suites.run("examples in the documentation", || {
        run_command(&mut with_signals(cargo(&[
            "test",
            "--workspace",
            "--doc",
            "--quiet",
            "--no-fail-fast",
        ])))
    });
    suites.run("the recorded cases of the reference", || {
        run_command(&mut cargo(&["xtask", "vectors"]))
    });
    suites.run(
        &format!("{share} of the calls that are compared with the reference while it runs"),
        || has_reference(&|| live::run_here(arguments.full)),
    );
    suites.run("the Python package", || python::run(&python::Arguments::default()));
    // Whoever runs this has just run the suites as themselves; the other kind of user is missing.
    let other = means.other();
    for (package, name) in others {
        suites.run(&format!("{name} of {package} as {other}"), || {
            let program = test_binary(package, name, &[])?;
            // Once more, as everywhere: what passes then is named, and is a bug to be fixed.
            let once = means.run_as_other(&program, settings).or_else(|why| {
                say(&format!("flaky?   {name} as {other} failed ({why}); once more"));
                means.run_as_other(&program, settings)
            });
            if let Err(reason) = once? {
                notes.push(format!("skipped the local suites as {other}: {reason}"));
            }
            Ok(())
        });
    }
    if arguments.full {
        suites.run("what is shipped, built twice", || {
            dist::run(&dist::Arguments { twice: true, no_wheel: false })
        });
        if means.is_root() {
            suites.run("the first hour in a fresh system", first_hour::run);
        }
    }
    (suites, notes)
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
    /// Where temporary files of tests go.
    scratch: &'a Path,
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

fn run_tests(
    settings: Settings<'_>,
    engine: Option<&Engine>,
    cluster: Option<&cluster::TestCluster>,
) -> Outcome {
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
    command.envs(cluster.map(cluster::TestCluster::variables).unwrap_or_default());
    command.env("TMPDIR", settings.scratch);
    run_command(&mut with_signals(command))
}

/// A test program of the local backend, built with these variables.
pub(crate) fn local_binary(name: &str, variables: &[(&str, &Path)]) -> Outcome<PathBuf> {
    test_binary(LOCAL, name, variables)
}

/// A test program of some package, built: as all are, with the features of the whole workspace.
fn test_binary(package: &str, name: &str, variables: &[(&str, &Path)]) -> Outcome<PathBuf> {
    let build = ["test", "--workspace", "--test", name, "--no-run"];
    let mut build = cargo(&build);
    build.envs(variables.iter().copied());
    let messages = read(build.arg("--message-format=json"))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| {
            let id = message["package_id"].as_str().unwrap_or_default();
            let is_its = id.contains(&format!("#{package}@"));
            let is_it = is_its && message["target"]["name"] == name;
            message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
        })
        .ok_or_else(|| format!("cargo built no test program {name} of {package}").into())
}
