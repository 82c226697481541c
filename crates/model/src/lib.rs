#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod error;
pub mod lax;
pub mod permissions;
mod python;
pub mod registry;
mod spelling;

pub use error::{Error, ErrorKind, FieldError, Result};
pub use permissions::{FileMode, Permissions};
pub use registry::{Parsed, Registry, Warning};
