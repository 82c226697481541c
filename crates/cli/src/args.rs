//! What can be written on the command line.

use crate::commands::run::RunArgs;

/// Give software agents a place to work
#[derive(Debug, clap::Parser)]
#[command(name = "bastide", version, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Task {
    Run(RunArgs),
}
