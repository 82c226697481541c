//! Tasks that need Bastide itself: `cargo xtask live`, `vectors`, `fuzz` and `docs` build and run this program. The tasks' own
//! program knows nothing of Bastide, so that it is built in seconds and nothing is compiled with two sets of features.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks talk to whoever runs them")]

mod fuzz;
mod live;
mod vectors;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use bastide_testkit::manifest_page;
use clap::Parser;

/// What a task gives: nothing, or why it failed.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Feed inputs nobody would write to whatever reads what strangers send
    Fuzz(fuzz::Arguments),
    /// Make the same calls on the reference's clients and on ours, and compare
    Live(live::Arguments),
    /// Print the page of every field of a manifest
    ManifestPage,
    /// Print the schema of manifests
    ManifestSchema,
    /// Run the recorded cases of the reference
    Vectors(vectors::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Live(arguments) => live::run(&arguments),
        Task::ManifestPage => {
            print!("{}", manifest_page::page());
            Ok(())
        }
        Task::ManifestSchema => {
            println!("{:#}", bastide_model::schema::manifest());
            Ok(())
        }
        Task::Vectors(arguments) => vectors::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The top folder of the repository.
fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Says something.
fn say(text: &str) {
    println!("{text}");
}

/// Announces a step.
fn step(text: &str) {
    println!("\n== {text}");
}
