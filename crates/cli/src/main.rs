//! The `bastide` command: parses, calls the library, prints. Only this crate prints or reads the
//! environment.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod config;
mod ui;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Task};
use ui::Ui;

fn main() -> ExitCode {
    let args = Args::parse();
    let mut ui = Ui::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(perform(args, &mut ui)),
        Err(error) => Err(bastide::Error::new(bastide::ErrorKind::Io, error.to_string())),
    };
    done.unwrap_or_else(|error| {
        ui.error(&error);
        ExitCode::from(ui::OWN_FAILURE)
    })
}

async fn perform(args: Args, ui: &mut Ui) -> bastide::Result<ExitCode> {
    match args.task {
        Task::Run(args) => commands::run::run(ui, args).await,
    }
}
