//! `cargo xtask bench`: measures beside what users would use instead, in one run.

mod image;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, cargo, run as run_command, say, step, top, works};
use crate::test::engine::Engine;
use crate::test::stores;
use crate::{dist, python};
use image::Image;

/// The reference, as users install it.
const REFERENCE: &str = "openai-agents[docker]==0.24.0";

/// The programs that measure.
const BENCHES: [&str; 3] = ["scenarios", "workspaces", "storage"];

/// A tool of somebody else's that is built here, once.
struct Peer {
    name: &'static str,
    package: &'static str,
    version: &'static str,
}

/// Those that are measured beside ours.
const PEERS: [Peer; 2] = [
    Peer { name: "sandlock", package: "sandlock-cli", version: "0.9.0" },
    Peer { name: "nono", package: "nono-cli", version: "0.81.0" },
];

impl Peer {
    /// The program, built by the first who needs it and kept in `target/peers`.
    fn install(&self) -> Outcome<PathBuf> {
        let folder = top().join("target/peers");
        let program = folder.join("bin").join(self.name);
        let has_version = Command::new(&program).arg("--version").output();
        let version =
            has_version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        if version.is_ok_and(|version| version.contains(self.version)) {
            return Ok(program);
        }
        say(&format!("building {} {} in target/peers", self.package, self.version));
        let package = format!("{}@{}", self.package, self.version);
        let mut install = cargo(&["install", "--quiet", "--locked", "--force", "--root"]);
        install.arg(&folder).arg(package);
        // Nothing of theirs is to be built again for what we build, nor the other way round.
        install.env("CARGO_TARGET_DIR", folder.join("build"));
        run_command(&mut install)?;
        Ok(program)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Few rounds: for a first impression
    #[arg(long)]
    quick: bool,
    /// One JSON object a line, for programs
    #[arg(long)]
    json: bool,
    /// Only scenarios whose title holds this
    #[arg(long)]
    only: Option<String>,
    /// Only scenarios of these backends of ours: local, docker
    #[arg(long, value_name = "BACKENDS")]
    backend: Option<String>,
    /// Only these peers: reference, reference-docker, docker-exec, bwrap, sandlock, nono, posix_spawn, host, lstat-walk, tar, git-commit, cp-a
    #[arg(long, value_name = "PEERS")]
    against: Option<String>,
    /// Fail where a promise of SPECIFICATION.md does not hold, or could not be measured
    #[arg(long)]
    check: bool,
    /// Peers that need not be here for `--check`
    #[arg(long, value_name = "PEERS")]
    without: Option<String>,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Fail where a ratio became worse since the results in this file
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Draw the ratios, for the README
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
}

/// Makes the peers available, then runs the scenarios.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    step("peers");
    let python = reference()?;
    let bwrap = works(Command::new("bwrap").arg("--version"));
    if !bwrap {
        say("bwrap is not installed; its column stays empty (`apt-get install bubblewrap`)");
    }
    // The command line is measured as it is shipped, everything else as a program that uses the library is built.
    let shipped = dist::program()?;
    let mut build = cargo(&["build", "--quiet", "--release", "--workspace"]);
    run_command(build.args(BENCHES.iter().flat_map(|bench| ["--bench", bench])))?;
    let disk = Image::mount();
    if let Err(why) = &disk {
        say(&format!("no disk image, the rows that need one stay empty: {why}"));
    }
    let engine = Engine::prepare()?;
    if let Err(why) = &engine {
        say(&format!("no Docker daemon, its rows stay empty: {why}"));
    }
    let others: Vec<_> = PEERS.iter().map(|peer| (peer, peer.install())).collect();
    step("scenarios");
    let mut command = bench("scenarios");
    command.arg("--python").arg(python).arg("--cli").arg(shipped);
    command.arg("--commit").arg(commit());
    if let Ok(engine) = &engine {
        command.arg("--docker").arg(engine.variable().1);
    }
    if let Ok(disk) = &disk {
        command.arg("--disk").arg(disk.folder());
    }
    for (peer, installed) in &others {
        match installed {
            Ok(program) => {
                command.arg(format!("--{}", peer.name)).arg(program);
            }
            Err(why) => {
                say(&format!("{} cannot be built, its column stays empty: {why}", peer.name));
            }
        }
    }
    let flags = [
        ("--bwrap", bwrap),
        ("--quick", arguments.quick),
        ("--json", arguments.json),
        ("--check", arguments.check),
    ];
    command.args(flags.into_iter().filter(|(_, set)| *set).map(|(flag, _)| flag));
    let words = [
        ("--only", &arguments.only),
        ("--backend", &arguments.backend),
        ("--against", &arguments.against),
        ("--without", &arguments.without),
    ];
    for (option, value) in words {
        command.args(value.iter().flat_map(|value| [option, value.as_str()]));
    }
    let files = [
        ("--save", &arguments.save),
        ("--compare", &arguments.compare),
        ("--chart", &arguments.chart),
    ];
    for (option, file) in files {
        if let Some(file) = file {
            command.arg(option).arg(std::path::absolute(file)?);
        }
    }
    run_command(&mut command)?;
    if arguments.backend.is_none() {
        beside_others("workspaces of runs", arguments, "workspaces")?;
        stores::install(true);
        beside_others("cloud storage", arguments, "storage")?;
        bars(arguments, &reference()?)?;
    }
    Ok(())
}

/// A bench of ours, built as all of them are: with the features of the whole workspace.
fn bench(name: &str) -> Command {
    cargo(&["bench", "--quiet", "--workspace", "--bench", name, "--"])
}

/// Rows that have peers of their own.
fn beside_others(what: &str, arguments: &Arguments, name: &str) -> Outcome {
    step(what);
    let mut command = bench(name);
    let flags =
        [("--quick", arguments.quick), ("--json", arguments.json), ("--check", arguments.check)];
    command.args(flags.into_iter().filter(|(_, set)| *set).map(|(flag, _)| flag));
    command.args(arguments.only.iter().flat_map(|part| ["--only", part.as_str()]));
    run_command(&mut command)
}

/// The rows of the Python package.
fn bars(arguments: &Arguments, python: &Path) -> Outcome {
    let mut options = Vec::new();
    if arguments.quick {
        options.extend(["--rounds", "10"]);
    }
    if let Some(only) = &arguments.only {
        options.extend(["--only", only.as_str()]);
    }
    options.extend(arguments.json.then_some("--json"));
    options.extend(arguments.check.then_some("--check"));
    python::bars(python, &options)
}

/// What is measured, for the record.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let name = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    name.map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// The interpreter of a virtual environment with the reference in it, made at the first use.
pub(crate) fn reference() -> Outcome<PathBuf> {
    let folder = top().join("target/reference");
    let python = folder.join("bin/python");
    let import = ["-c", "import agents.sandbox.sandboxes.unix_local, docker"];
    if !works(Command::new(&python).args(import)) {
        say("making a virtual environment with the reference in target/reference");
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        run_command(Command::new(&python).args(["-m", "pip", "install", "--quiet", REFERENCE]))?;
    }
    Ok(python)
}
