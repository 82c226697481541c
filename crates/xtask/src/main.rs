//! Tasks of this repository that need logic: `cargo xtask <task>`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod vectors;

#[derive(Parser)]
#[command(about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the recorded cases of the reference
    Vectors(vectors::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Vectors(arguments) => vectors::run(&arguments),
    }
}
