#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod clients;
mod commands;
mod config;
mod events;
mod foreground;
mod stdin;
mod terminal;
mod transfer;
mod ui;

use std::fs::File;
use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::process::ExitCode;

use bastide::{Error, ErrorKind};
use clap::Parser;

use args::{Args, Task};
use ui::Ui;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refuse(&error),
    };
    let mut ui = Ui::new(args.task.json());
    if let Err(error) = spare_descriptors() {
        let message = format!("cannot begin with so few file descriptors: {error}");
        return ui.failure(&Error::new(ErrorKind::Io, message).with_hint("raise `ulimit -n`"));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ui.failure(&Error::new(ErrorKind::Io, error.to_string())),
    };
    let done = runtime.block_on(async {
        match args.task.perform(&mut ui).await {
            Err(error) => Err(clients::explained(error).await),
            done => done,
        }
    });
    // What happened is on record and with whoever is to hear of it before we end.
    runtime.block_on(bastide::events::flush_all());
    // Nothing that still waits somewhere, such as for input nobody will type, is worth waiting for.
    runtime.shutdown_background();
    done.unwrap_or_else(|error| ui.failure(&error))
}

/// Makes sure that there are as many descriptors as the runtime takes for itself. It would panic.
fn spare_descriptors() -> io::Result<()> {
    const NEEDED: usize = 8;
    let held: io::Result<Vec<File>> = (0..NEEDED).map(|_| File::open("/dev/null")).collect();
    held.map(drop)
}

/// Answers a command line that is no command: help that was asked for, or what is wrong.
fn refuse(error: &clap::Error) -> ExitCode {
    let json = args::asks_for_json(std::env::args_os().skip(1));
    if !error.use_stderr() || !json {
        // Where it cannot be printed there is nobody to tell.
        drop(error.print());
        return ExitCode::from(if error.use_stderr() { ui::OWN_FAILURE } else { 0 });
    }
    let text = error.render().to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    Ui::new(true).failure(&Error::new(ErrorKind::InvalidInput, message))
}

/// What a task does.
type Work<'a> = Pin<Box<dyn Future<Output = bastide::Result<ExitCode>> + 'a>>;

/// Puts the future of one task on the heap. In a function of its own, and not inlined: otherwise every start
/// touches a stack on which the largest of all tasks has room.
#[inline(never)]
fn boxed<'a, F>(task: impl FnOnce() -> F) -> Work<'a>
where
    F: Future<Output = bastide::Result<ExitCode>> + 'a,
{
    Box::pin(task())
}

impl Task {
    /// Whether a program reads what is printed.
    fn json(&self) -> bool {
        match self {
            Self::Init(args) => args.json,
            Self::Run(args) => args.json,
            Self::Agent(args) => args.json(),
            Self::Sbx(args) => args.json(),
            Self::Kubernetes(args) => args.json(),
            Self::Create(args) => args.json,
            Self::Exec(args) => args.json,
            Self::Ps(args) => args.json,
            Self::Kill(args) => args.json,
            Self::Cp(args) => args.json,
            Self::Files(args) => args.json(),
            Self::Ls(args) => args.json,
            Self::Inspect(args) => args.json,
            Self::Events(args) => args.json,
            Self::Audit(args) => args.json(),
            Self::Port(args) => args.json,
            Self::Mounts(args) => args.json,
            Self::Net(args) => args.json(),
            Self::Stop(args) => args.json,
            Self::Resume(args) => args.json,
            Self::Rm(args) => args.json,
            Self::Snapshot(args) => args.json(),
            Self::Checkpoint(args) => args.json,
            Self::Log(args) => args.json,
            Self::Lease(args) => args.json,
            Self::Stats(args) => args.json,
            Self::Diff(args) => args.json,
            Self::Undo(args) => args.json,
            Self::Redo(args) => args.json,
            Self::Restore(args) => args.json,
            Self::Fork(args) => args.json,
            Self::Merge(args) => args.json,
            Self::Bisect(args) => args.json,
            Self::Sweep(args) => args.json,
            Self::Doctor(args) => args.json,
            Self::Attach(args) => args.json,
            Self::Shell(_) | Self::Completions(_) | Self::Man(_) => false,
        }
    }

    fn perform(self, ui: &mut Ui) -> Work<'_> {
        match self {
            Self::Init(args) => boxed(|| ready(commands::init::run(ui, &args))),
            Self::Run(args) => boxed(|| commands::run::run(ui, args)),
            Self::Agent(args) => boxed(|| commands::agent::run(ui, args)),
            Self::Sbx(args) => boxed(|| commands::sbx::run(ui, args)),
            Self::Kubernetes(args) => boxed(|| commands::kubernetes::run(ui, args)),
            Self::Create(args) => boxed(|| commands::create::run(ui, args)),
            Self::Exec(args) => boxed(|| commands::exec::run(ui, args)),
            Self::Shell(args) => boxed(|| commands::shell::run(ui, args)),
            Self::Ps(args) => boxed(|| commands::ps::run(ui, args)),
            Self::Attach(args) => boxed(|| commands::attach::run(ui, args)),
            Self::Kill(args) => boxed(|| commands::kill::run(ui, args)),
            Self::Cp(args) => boxed(|| commands::cp::run(ui, args)),
            Self::Files(args) => boxed(|| commands::files::run(ui, args)),
            Self::Ls(args) => boxed(|| commands::ls::run(ui, args)),
            Self::Inspect(args) => boxed(|| commands::inspect::run(ui, args)),
            Self::Events(args) => boxed(|| commands::events::run(ui, args)),
            Self::Audit(args) => boxed(|| ready(commands::audit::run(ui, args))),
            Self::Mounts(args) => boxed(|| commands::mounts::run(ui, args)),
            Self::Net(args) => boxed(|| commands::net::run(ui, args)),
            Self::Port(args) => boxed(|| commands::port::run(ui, args)),
            Self::Stop(args) => boxed(|| commands::stop::run(ui, args)),
            Self::Resume(args) => boxed(|| commands::resume::run(ui, args)),
            Self::Rm(args) => boxed(|| commands::rm::run(ui, args)),
            Self::Snapshot(args) => boxed(|| commands::snapshot::run(ui, args)),
            Self::Checkpoint(args) => boxed(|| commands::checkpoint::run(ui, args)),
            Self::Log(args) => boxed(|| ready(commands::log::run(ui, &args))),
            Self::Lease(args) => boxed(|| commands::lease::run(ui, args)),
            Self::Stats(args) => boxed(|| commands::stats::run(ui, args)),
            Self::Diff(args) => boxed(|| commands::diff::run(ui, args)),
            Self::Undo(args) => boxed(|| commands::undo::run(ui, args)),
            Self::Redo(args) => boxed(|| commands::redo::run(ui, args)),
            Self::Restore(args) => boxed(|| commands::restore::run(ui, args)),
            Self::Fork(args) => boxed(|| commands::fork::run(ui, args)),
            Self::Merge(args) => boxed(|| commands::merge::run(ui, args)),
            Self::Bisect(args) => boxed(|| commands::bisect::run(ui, args)),
            Self::Sweep(args) => boxed(|| commands::sweep::run(ui, args)),
            Self::Doctor(args) => boxed(|| commands::doctor::run(ui, args)),
            Self::Completions(args) => boxed(|| ready(commands::docs::completions(ui, args))),
            Self::Man(args) => boxed(|| ready(commands::docs::man(ui, &args))),
        }
    }
}
