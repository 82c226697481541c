#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod boot;
mod codex;
mod dial;
mod dialect;
pub mod global;
mod journal;
mod listing;
mod options;
mod ports;
mod program;
mod readiness;
mod receipt;
mod state;

pub use backend::SbxBackend;
pub use dialect::{Dialect, Release};
pub use journal::keep_secret;
pub use listing::SandboxInfo;
pub use options::{SbxOptions, SecretValue, check_service};
pub use program::{LineListener, Sbx};
pub use readiness::DIAGNOSIS;
pub use state::was_used;
