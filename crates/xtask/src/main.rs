//! Tasks of this repository that need logic: `cargo xtask <task>`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod docs;
mod vectors;

#[derive(Parser)]
#[command(about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the reference pages that are made from the code
    Docs,
    /// Run the recorded cases of the reference
    Vectors(vectors::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Docs => docs::run(),
        Task::Vectors(arguments) => vectors::run(&arguments),
    }
}
