#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod backend;
mod boot;
mod checkup;
mod cluster;
mod end;
mod failure;
mod guest_parts;
mod link;
mod manifest;
mod meeting;
mod objects;
mod options;
mod pod;
mod progress;
mod proof;
mod receipt;
mod removal;
mod rights;
mod sightings;
mod state;
mod stream;
mod sweep;
mod watch;

// The release of the cluster's interface is chosen by its features; its types are not used.
use k8s_openapi as _;

pub use access::{ClusterAccess, is_namespace};
pub use backend::KubernetesBackend;
pub use checkup::ClusterReport;
pub use manifest::manifest;
pub use options::{KubernetesOptions, PodPull, VolumeRequest};
pub use rights::MissingRight;
pub use state::was_used;
