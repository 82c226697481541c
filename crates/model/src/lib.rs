#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod error;
pub mod paths;
pub mod pty;
pub mod text;
pub mod truncation;

pub use error::{Error, ErrorClass, ErrorKind, FieldError, Result};
