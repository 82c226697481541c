#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod checksum;
pub mod client_options;
pub mod custom;
pub mod docker;
pub mod document;
pub mod entry;
pub mod environment;
pub mod error;
pub mod events;
mod exposed_port;
mod host_environment;
pub mod json_text;
pub mod lax;
pub mod listing;
pub mod manifest;
pub mod merge;
pub mod mount;
pub mod patch;
mod path_grant;
pub mod paths;
pub mod permissions;
mod posix_path;
pub mod pty;
pub mod python;
pub mod receipt;
pub mod registry;
pub mod schema;
pub mod seatbelt;
mod secret;
pub mod snapshot;
mod spelling;
pub mod state;
pub mod text;
pub mod tools;
pub mod truncation;
pub mod users;
mod windows_path;

pub use client_options::{ClientOptions, LocalLimits};
pub use entry::{Entry, EntryKind};
pub use environment::Environment;
pub use error::{Condition, Error, ErrorClass, ErrorKind, FieldError, Result};
pub use exposed_port::ExposedPort;
pub use host_environment::{HOST_ENVIRONMENT_ALLOWLIST, HostEnvironment};
pub use manifest::Manifest;
pub use mount::Mount;
pub use path_grant::PathGrant;
pub use permissions::{FileMode, Permissions};
pub use posix_path::PosixPath;
pub use registry::{Parsed, Registry, Warning};
pub use secret::{Secret, redact_secrets};
pub use snapshot::{Snapshot, SnapshotSpec};
pub use state::SessionState;
pub use users::{Group, User};
pub use windows_path::WindowsPath;
