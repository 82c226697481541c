//! `cargo xtask live`: the same calls on the reference's clients and on ours.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::reference;
use crate::shell::{Outcome, built_task, run as run_command, say, step, top, works};
use crate::test::engine::Engine;
use crate::test::privileges::Account;

/// Which of the scenarios `cargo xtask test` runs: each of this many, and those without which some call were not tried.
const SOME: u32 = 16;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only scenarios whose name holds this
    #[arg(long)]
    only: Option<String>,
    /// Only this backend
    #[arg(long, value_parser = ["local", "docker"])]
    backend: Option<String>,
    /// Scripts of calls that this number makes, instead of the scenarios
    #[arg(long)]
    seed: Option<u64>,
    /// Only each of that many scenarios, and those without which some call were not tried
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    every: Option<u32>,
    /// How many scenarios are run at once
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Run those of this machine as an ordinary user, whom root makes for that; nobody else has to
    #[arg(long)]
    as_user: bool,
}

/// Which of those of containers: they take longer.
const SOME_IN_CONTAINERS: u32 = 64;

/// Runs some of the scenarios on this machine: enough to see that both sides still do the same. Or all, as an ordinary user, too.
pub(crate) fn run_here(all: bool) -> Outcome {
    let here = |as_user, only: Option<&str>, every| {
        let (backend, only) = (Some("local".to_owned()), only.map(str::to_owned));
        run(&Arguments { only, backend, seed: None, every, jobs: 3, as_user })
    };
    here(false, None, (!all).then_some(SOME))?;
    // What a user may do is the same for root and different for anybody else.
    here(true, (!all).then_some("permissions/"), None)
}

/// Runs some of those of containers, or all, on a daemon that is there.
pub(crate) fn run_in_containers(all: bool, engine: &Engine) -> Outcome {
    let every = (!all).then_some(SOME_IN_CONTAINERS);
    let arguments =
        Arguments { only: None, backend: None, seed: None, every, jobs: 3, as_user: false };
    let mut command = built_task("live")?;
    pass_on(&arguments, &reference()?, &mut command);
    run_command(command.arg("--docker").arg(engine.variable().1))
}

/// Runs the scenarios on each backend.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let python = reference()?;
    let task = built_task("live")?;
    if arguments.as_user && rustix::process::geteuid().is_root() {
        step("live, as an ordinary user");
        return run_as_user(arguments, &task, &python);
    }
    let is_wanted = |name: &str| arguments.backend.as_deref().is_none_or(|wanted| wanted == name);
    let mut command = task;
    pass_on(arguments, &python, &mut command);
    if is_wanted("local") {
        command.arg("--local");
    }
    // It stays until the scenarios are over.
    let engine = if is_wanted("docker") { Some(Engine::prepare()??) } else { None };
    if let Some(engine) = &engine {
        command.arg("--docker").arg(engine.variable().1);
    }
    run_command(&mut command)
}

/// Tells the task what it was asked for here.
fn pass_on(arguments: &Arguments, python: &Path, command: &mut Command) {
    command.arg("--python").arg(python).args(["--jobs", &arguments.jobs.to_string()]);
    command.args(arguments.only.iter().flat_map(|only| ["--only", only.as_str()]));
    let numbers = [("--seed", arguments.seed), ("--every", arguments.every.map(u64::from))];
    for (option, number) in numbers {
        if let Some(number) = number {
            command.args([option, &number.to_string()]);
        }
    }
}

/// Runs them as somebody who is not root.
fn run_as_user(arguments: &Arguments, task: &Command, python: &Path) -> Outcome {
    let account = Account::create()?;
    let scenarios = top().join("crates/testkit/data/live");
    if !works(Command::new("ls").arg(&scenarios).uid(account.uid).gid(account.gid)) {
        say(&format!("skipped: an ordinary user cannot look into {}", scenarios.display()));
        return Ok(());
    }
    let (python, packages) = interpreter(python, &account)?;
    share_reference_folders()?;
    // The build folder may lie where the user cannot look.
    let folder = tempfile::Builder::new().prefix("bastide-live-user-").tempdir()?;
    let program = folder.path().join("tasks");
    fs::copy(task.get_program(), &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    chown(folder.path(), Some(account.uid), Some(account.gid))?;
    let mut command = Command::new(&program);
    command.args(["live", "--local"]);
    pass_on(arguments, &python, &mut command);
    command.env_clear().env("HOME", folder.path()).env("TMPDIR", folder.path());
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    command.env("PYTHONPATH", packages).uid(account.uid).gid(account.gid);
    run_command(&mut command)
}

/// Where the reference keeps what it knows of workspaces, whoever runs it. It belongs to who came first, and without it there are no
/// fingerprints.
const REFERENCE_FOLDERS: [&str; 3] =
    ["/tmp/openai-agents", "/tmp/openai-agents/bin", "/tmp/openai-agents/session-state"];

/// Lets everybody write there, as everybody may write to what is around it.
fn share_reference_folders() -> Outcome {
    for folder in REFERENCE_FOLDERS {
        if fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
            return Err(format!("{folder} is no folder; remove it, or ask whose it is").into());
        }
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

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
