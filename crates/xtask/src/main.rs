#![doc = include_str!("../README.md")]

mod bench;
mod check;
mod ci;
mod cluster;
mod dist;
mod docs;
mod first_hour;
mod live;
mod python;
mod shell;
mod test;
mod walls;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run what a machine can check by reading: format, lints, crate edges, licences, sizes, crate pages
    Check,
    /// Run every test; says first what it would install, start or create
    Test(test::Arguments),
    /// Start a Docker daemon with the images of the tests, until its input ends
    Engine,
    /// Start, end or disturb a Kubernetes cluster on loopback with the images of the tests; as root
    Cluster(cluster::Arguments),
    /// Do what CI does: `check`, then `test` with nothing skipped
    Ci,
    /// Measure beside what users would use instead
    Bench(bench::Arguments),
    /// Build what is shipped: a static program, the wheel, checksums, a list of components
    Dist(dist::Arguments),
    /// Write the reference pages that are made from the code
    Docs,
    /// Do in a fresh Debian what a new user does with the README; as root
    FirstHour,
    /// Feed inputs nobody would write to whatever reads what strangers send
    #[command(disable_help_flag = true)]
    Fuzz(ForwardedArgs),
    /// Make the same calls on the reference's clients and on ours, and compare
    Live(live::Arguments),
    /// Build the Python package and run its tests, and the SDK's own ones on it
    Python(python::Arguments),
    /// Run the recorded cases of the reference
    #[command(disable_help_flag = true)]
    Vectors(ForwardedArgs),
    /// Take walls away, and see that trials notice; as root, with a user that is removed at the end
    Walls,
}

/// Words for a task that needs Bastide itself, and has a program of its own.
#[derive(clap::Args)]
struct ForwardedArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl ForwardedArgs {
    fn forward(&self, task: &str) -> shell::Outcome {
        shell::run(shell::built_task(task)?.args(&self.words))
    }
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Check => shell::finish(check::run()),
        Task::Test(arguments) => shell::finish(test::run(&arguments)),
        Task::Engine => shell::finish(test::hold_engine()),
        Task::Cluster(arguments) => shell::finish(cluster::run(&arguments)),
        Task::Ci => shell::finish(ci::run()),
        Task::Bench(arguments) => shell::finish(bench::run(&arguments)),
        Task::Dist(arguments) => shell::finish(dist::run(&arguments)),
        Task::Docs => shell::finish(docs::run()),
        Task::FirstHour => shell::finish(first_hour::run()),
        Task::Fuzz(words) => shell::finish(words.forward("fuzz")),
        Task::Live(arguments) => shell::finish(live::run(&arguments)),
        Task::Python(arguments) => shell::finish(python::run(&arguments)),
        Task::Vectors(words) => shell::finish(words.forward("vectors")),
        Task::Walls => shell::finish(walls::walk()),
    }
}
