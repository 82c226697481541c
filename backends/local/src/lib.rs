#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod identity;
mod layout;
mod receipt;
mod refusal;

pub use backend::LocalBackend;
