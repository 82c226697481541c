#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cache;
mod confine;
mod control;
mod dns;
mod fs;
mod fuse;
mod probe;
mod serve;
mod spec;
mod store;

pub use control::{Channel, Command, Event, Report};
pub use fs::Counts;
pub use probe::{ProbeError, probe};
pub use serve::serve;
pub use spec::{AzureAuth, Cache, GcsAuth, Keys, MountSpec, Secret, Source, Start};
