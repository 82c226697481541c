#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod attach;
mod cache;
mod confine;
mod control;
mod dns;
mod fs;
mod fuse;
mod keeper;
mod probe;
mod serve;
mod spec;
mod store;

pub use attach::attach;
pub use control::{Channel, Command, Event, Report};
pub use fs::Counts;
pub use keeper::keep;
pub use probe::{ProbeError, probe};
pub use serve::serve;
pub use spec::{AzureAuth, Cache, GcsAuth, Keys, MountSpec, Secret, Source, Start};
