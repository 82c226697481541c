//! `cargo xtask live`: the same calls on the reference's clients and on ours.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bastide::Backend;
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use bastide_testkit::engine::images;
use bastide_testkit::live::{Options, Side, run as run_scenarios};

use crate::bench::reference;
use crate::shell::{Outcome, run as run_command, say, step, works};
use crate::test::engine::Engine;
use crate::test::privileges::Account;

/// Which of the scenarios `cargo xtask test` runs: each of this many.
const SOME: u32 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only scenarios whose name holds this
    #[arg(long)]
    only: Option<String>,
    /// Only this backend: local or docker
    #[arg(long)]
    backend: Option<String>,
    /// Scripts of calls that this number makes, instead of the scenarios
    #[arg(long)]
    seed: Option<u64>,
    /// Only each of that many scenarios
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
    /// How many scenarios are run at once
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Run those of this machine as an ordinary user, whom root makes for that; nobody else has to
    #[arg(long)]
    as_user: bool,
}

/// Runs some of the scenarios on the local backend: enough to see that both sides still do the same.
pub(crate) fn run_some() -> Outcome {
    let some = |as_user, only: Option<&str>, every| {
        let (backend, only) = (Some("local".to_owned()), only.map(str::to_owned));
        run(&Arguments { only, backend, seed: None, every, jobs: 3, as_user })
    };
    some(false, None, Some(SOME))?;
    // What a user may do is the same for root and different for anybody else.
    some(true, Some("permissions/"), None)
}

/// The variable that tells a run which interpreter has the reference.
const PYTHON: &str = "BASTIDE_LIVE_PYTHON";

/// An interpreter that has the reference and that a user can execute: the virtual environment's own may be in root's folder. With it comes
/// where it finds the reference.
fn interpreter(python: &Path, account: &Account) -> Outcome<(PathBuf, PathBuf)> {
    let library = python.ancestors().nth(2).unwrap_or(python).join("lib");
    let mut versions = fs::read_dir(&library)?.filter_map(|found| found.ok().map(|it| it.path()));
    let packages = versions.next().unwrap_or(library).join("site-packages");
    for candidate in [python, Path::new("/usr/bin/python3")] {
        let mut command = Command::new(candidate);
        command.args(["-c", "import agents.sandbox.sandboxes.unix_local"]);
        command.env("PYTHONPATH", &packages).uid(account.uid).gid(account.gid);
        if works(&mut command) {
            return Ok((candidate.to_owned(), packages));
        }
    }
    let place = packages.display();
    Err(format!("no interpreter that an ordinary user can execute has the reference of {place}; install python3").into())
}

/// Runs them as somebody who is not root.
fn run_as_user(arguments: &Arguments, python: &Path) -> Outcome {
    let account = Account::create()?;
    let (python, packages) = interpreter(python, &account)?;
    // The build folder may lie where the user cannot look.
    let folder = tempfile::Builder::new().prefix("bastide-live-user-").tempdir()?;
    let program = folder.path().join("xtask");
    fs::copy(env::current_exe()?, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    chown(folder.path(), Some(account.uid), Some(account.gid))?;
    let mut command = Command::new(&program);
    command.args(["live", "--backend", "local", "--jobs", &arguments.jobs.to_string()]);
    if let Some(only) = &arguments.only {
        command.args(["--only", only]);
    }
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if let Some(every) = arguments.every {
        command.args(["--every", &every.to_string()]);
    }
    command.env_clear().env("HOME", folder.path()).env("TMPDIR", folder.path());
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command.env(PYTHON, python).env("PYTHONPATH", packages);
    command.uid(account.uid).gid(account.gid);
    run_command(&mut command)
}

/// Runs the scenarios on each backend.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let python = match env::var_os(PYTHON) {
        Some(python) => PathBuf::from(python),
        None => reference()?,
    };
    if arguments.as_user && rustix::process::geteuid().is_root() {
        step("live, as an ordinary user");
        return run_as_user(arguments, &python);
    }
    let home = tempfile::tempdir()?;
    let is_wanted = |name: &str| arguments.backend.as_deref().is_none_or(|wanted| wanted == name);
    if let Some(other) =
        arguments.backend.as_deref().filter(|name| !["local", "docker"].contains(name))
    {
        return Err(format!("there is no backend `{other}`: `local` or `docker`").into());
    }
    let mut failed = false;
    let mut compare = |side: Side, backend: Arc<dyn Backend>| -> Outcome {
        step(&format!("live, {}", side.name()));
        let Arguments { seed, jobs, .. } = *arguments;
        let (only, python) = (arguments.only.clone(), python.clone());
        let every = arguments.every.map(|every| every as usize);
        let options = Options { side, only, every, seed, jobs, python, backend };
        let report = run_scenarios(&options, say)?;
        say(&report.text());
        failed |= !report.is_success();
        Ok(())
    };
    if is_wanted("local") {
        let backend =
            LocalBackend::new(home.path().join("local")).map_err(|error| error.to_string())?;
        compare(Side::Local, Arc::new(backend))?;
    }
    if is_wanted("docker") {
        let engine = Engine::prepare()??;
        let host = engine.variable().1;
        let address = EngineAddress::parse(&host, None).map_err(|error| error.to_string())?;
        let options = DockerOptions::new(images::BASE);
        let backend = DockerBackend::new(home.path().join("docker"), address, options);
        let backend = backend.map_err(|error| error.to_string())?;
        let image = images::BASE.to_owned();
        compare(Side::Docker { host, image }, Arc::new(backend))?;
    }
    if failed { Err("the two sides differ".into()) } else { Ok(()) }
}
