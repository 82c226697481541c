#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agents;
mod backend;
pub mod collect;
mod git;
pub mod reference;
mod run;
mod sandbox;
mod shapes;
pub mod stream;
pub mod workspace;

pub use backend::RunBackend;
pub use run::run;
pub use sandbox::{Sandbox, SandboxOptions};
pub use shapes::{
    Artifact, CommandResult, RunArtifacts, RunConfig, RunReport, RunResult, RunSession,
};
pub use workspace::journal::{RunFolder, RunHome, RunSweep};
