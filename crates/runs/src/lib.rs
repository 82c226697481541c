#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod collect;
mod git;
mod shapes;
pub mod stream;
