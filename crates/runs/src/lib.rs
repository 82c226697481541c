#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agents;
mod backend;
pub mod collect;
mod docker;
mod files;
mod git;
mod live_runs;
pub mod reference;
mod run;
mod sandbox;
mod shapes;
pub mod stream;
mod transcript;
pub mod workspace;

pub use backend::RunBackend;
pub use docker::DockerSandbox;
pub use files::WorkspaceFiles;
pub use run::run;
pub use sandbox::{Sandbox, SandboxOptions};
pub use shapes::{
    Artifact, CommandResult, RunArtifacts, RunConfig, RunReport, RunResult, RunSession,
};
pub use workspace::journal::{RunFolder, RunHome, RunSweep};
