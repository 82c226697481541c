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
use std::io;
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

    async fn perform(self, ui: &mut Ui) -> bastide::Result<ExitCode> {
        match self {
            Self::Init(args) => commands::init::run(ui, &args),
            Self::Run(args) => commands::run::run(ui, args).await,
            Self::Agent(args) => commands::agent::run(ui, args).await,
            Self::Sbx(args) => commands::sbx::run(ui, args).await,
            Self::Kubernetes(args) => commands::kubernetes::run(ui, args).await,
            Self::Create(args) => commands::create::run(ui, args).await,
            Self::Exec(args) => commands::exec::run(ui, args).await,
            Self::Shell(args) => commands::shell::run(ui, args).await,
            Self::Ps(args) => commands::ps::run(ui, args).await,
            Self::Attach(args) => commands::attach::run(ui, args).await,
            Self::Kill(args) => commands::kill::run(ui, args).await,
            Self::Cp(args) => commands::cp::run(ui, args).await,
            Self::Files(args) => commands::files::run(ui, args).await,
            Self::Ls(args) => commands::ls::run(ui, args).await,
            Self::Inspect(args) => commands::inspect::run(ui, args).await,
            Self::Events(args) => commands::events::run(ui, args).await,
            Self::Audit(args) => commands::audit::run(ui, args),
            Self::Mounts(args) => commands::mounts::run(ui, args).await,
            Self::Net(args) => commands::net::run(ui, args).await,
            Self::Port(args) => commands::port::run(ui, args).await,
            Self::Stop(args) => commands::stop::run(ui, args).await,
            Self::Resume(args) => commands::resume::run(ui, args).await,
            Self::Rm(args) => commands::rm::run(ui, args).await,
            Self::Snapshot(args) => commands::snapshot::run(ui, args).await,
            Self::Checkpoint(args) => commands::checkpoint::run(ui, args).await,
            Self::Log(args) => commands::log::run(ui, &args),
            Self::Lease(args) => commands::lease::run(ui, args).await,
            Self::Stats(args) => commands::stats::run(ui, args).await,
            Self::Diff(args) => commands::diff::run(ui, args).await,
            Self::Undo(args) => commands::undo::run(ui, args).await,
            Self::Redo(args) => commands::redo::run(ui, args).await,
            Self::Restore(args) => commands::restore::run(ui, args).await,
            Self::Fork(args) => commands::fork::run(ui, args).await,
            Self::Merge(args) => commands::merge::run(ui, args).await,
            Self::Bisect(args) => commands::bisect::run(ui, args).await,
            Self::Sweep(args) => commands::sweep::run(ui, args).await,
            Self::Doctor(args) => commands::doctor::run(ui, args).await,
            Self::Completions(args) => commands::docs::completions(ui, args),
            Self::Man(args) => commands::docs::man(ui, &args),
        }
    }
}
