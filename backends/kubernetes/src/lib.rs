#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod backend;
mod boot;
mod cluster;
mod cluster_report;
mod end;
mod failure;
mod guest_parts;
mod handshake;
mod job_keep_alive;
mod lease;
mod link;
mod manifest;
mod objects;
mod options;
mod patch;
mod pod;
mod pod_cache;
mod progress;
mod proof;
mod receipt;
mod refusal;
mod removal;
mod rights;
mod state;
mod stream;
mod sweep;
mod watch;

// The release of the cluster's interface is chosen by its features; its types are not used.
use k8s_openapi as _;

pub use access::{ClusterAccess, is_namespace};
pub use backend::KubernetesBackend;
pub use cluster_report::ClusterReport;
pub use manifest::manifest;
pub use options::{ClaimMount, KubernetesOptions, PodPull, VolumeRequest};
pub use rights::MissingRight;
pub use state::was_used;
