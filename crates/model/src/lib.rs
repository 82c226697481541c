#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod error;
pub mod receipt;

pub use error::{Error, ErrorKind, FieldError, Result};
