#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod backend;
mod boot;
mod checkup;
mod container;
mod dial;
mod egress;
mod end;
mod engine;
mod engines;
mod grants;
mod guest_install;
mod image;
mod mounts;
mod network;
mod options;
mod ownership;
mod receipt;
mod rendezvous;
mod socket;
mod state;
mod storage;
mod sweep;
mod warden;

pub use address::EngineAddress;
pub use backend::DockerBackend;
pub use checkup::EngineReport;
pub use guest_install::was_used;
pub use options::{DockerOptions, PullPolicy};
