#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod backend;
mod boot;
mod checkup;
mod container;
mod dial;
mod end;
mod engine;
mod engines;
mod entry;
mod grants;
mod image;
mod meeting;
mod network;
mod options;
mod own;
mod receipt;
mod socket;
mod state;
mod storage;
mod sweep;
mod warden;

pub use address::EngineAddress;
pub use backend::DockerBackend;
pub use checkup::Checkup;
pub use entry::was_used;
pub use options::{DockerOptions, PullPolicy};
