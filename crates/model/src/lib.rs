#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod archive;
pub mod error;
pub mod lax;
pub mod listing;
pub mod patch;
pub mod paths;
pub mod permissions;
pub mod pty;
mod python;
pub mod registry;
mod spelling;
pub mod text;
pub mod truncation;

pub use error::{Error, ErrorClass, ErrorKind, FieldError, Result};
pub use permissions::{FileMode, Permissions};
pub use registry::{Parsed, Registry, Warning};
