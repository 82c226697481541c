#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod boot;
mod codex;
mod defaults;
mod dial;
mod dialect;
mod exec_log;
pub mod global;
mod listing;
mod options;
mod ports;
mod program;
mod readiness;
mod receipt;
mod resource_record;
mod state;

pub use backend::SbxBackend;
pub use dialect::{Dialect, Release};
pub use listing::SandboxInfo;
pub use options::{SbxOptions, SecretValue, check_service};
pub use program::{LineListener, Sbx};
pub use readiness::DIAGNOSIS;
pub use resource_record::keep_secret;
pub use state::was_used;
