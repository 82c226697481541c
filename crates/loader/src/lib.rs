#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod failure;
mod guest;
mod parts;

pub use failure::Failure;
pub use guest::{Guest, open};
