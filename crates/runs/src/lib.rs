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
pub mod stream;
mod transcript;
mod types;
pub mod workspace;

pub use backend::RunBackend;
pub use docker::DockerSandbox;
pub use files::WorkspaceFiles;
pub use run::run;
pub use sandbox::{Sandbox, SandboxOptions};
pub use types::{
    Artifact, CommandResult, RunArtifacts, RunConfig, RunReport, RunResult, RunSession,
};
pub use workspace::cleanup_log::{RunFolder, RunHome, RunSweep};
