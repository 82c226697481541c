//! Running programs and saying so. The only module of the tasks that prints.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks talk to whoever runs them")]

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What a task gives: nothing, or why it failed.
pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The top folder of the repository.
pub(crate) fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Says something.
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Announces a step.
pub(crate) fn step(text: &str) {
    println!("\n== {text}");
}

/// Turns the outcome of a task into its exit code.
pub(crate) fn finish(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a command to its end, in the top folder; it must end well.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let shown = show(command);
    println!("$ {shown}");
    let status =
        command.current_dir(top()).status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: {status}").into()) }
}

/// What a command says, in the top folder; it must end well.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    let shown = show(command);
    let output =
        command.current_dir(top()).output().map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{shown}: {}: {stderr}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a command can be run and ends well.
pub(crate) fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// The same cargo that runs this task. It hears nothing of this program's own package: some dependencies (`ring`) are built anew
/// whenever such a variable changes, as it would between a task and a plain `cargo build`.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A folder of the toolchain: where a variable says, else in the usual place in somebody's home.
pub(crate) fn toolchain(variable: &str, usual: &str) -> Outcome<PathBuf> {
    let line = format!("echo ${{{variable}:-$HOME/{usual}}}");
    Ok(PathBuf::from(read(Command::new("sh").arg("-c").arg(line))?.trim()))
}

/// Where cargo keeps what it fetches.
pub(crate) fn cargo_home() -> Outcome<PathBuf> {
    toolchain("CARGO_HOME", ".cargo")
}

/// The program `bastide`, built. Not by itself: with the features that everything is tested with, or most of what it depends
/// on would be compiled once more.
pub(crate) fn built_program() -> Outcome<PathBuf> {
    build(&["--bin", "bastide"])?;
    Ok(top().join("target/debug/bastide"))
}

/// A task that needs Bastide itself, which this program does not: it is built in seconds.
pub(crate) fn built_task(name: &str) -> Outcome<Command> {
    build(&[])?;
    let mut command = Command::new(top().join("target/debug/examples/tasks"));
    command.arg(name);
    Ok(command)
}

/// Builds the program of those tasks, and others. An example makes it a build with the features of tests.
fn build(others: &[&str]) -> Outcome {
    let mut command = cargo(&["build", "--quiet", "--workspace", "--example", "tasks"]);
    run(command.args(others))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A command whose programs get signals as from a terminal: under `nohup` or `&` some are ignored, which children
/// inherit, and tests that send them would wait for ever.
pub(crate) fn with_signals(command: Command) -> Command {
    let ignored = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    // HUP, INT, QUIT and TERM, counted from one.
    const ASKING: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 14;
    let mut wrapped = Command::new("setsid");
    // A session of its own: whoever hangs up meant it to go on.
    wrapped.args(["--wait", "env", "--default-signal=HUP,INT,QUIT,TERM"]);
    if ignored & ASKING == 0 || !works(Command::new("env").args(["--default-signal=HUP", "true"])) {
        return command;
    }
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}
