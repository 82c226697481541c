#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod layout;
mod process;
mod receipt;
mod refusal;
mod user;

pub use backend::LocalBackend;
