#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod backend;
mod boot;
mod cluster;
mod cluster_report;
mod end;
mod expose;
mod failure;
mod guest_image;
mod guest_parts;
mod handshake;
mod job_keep_alive;
mod kubeconfig;
mod lease;
mod link;
mod manifest;
mod objects;
mod options;
mod owner;
mod patch;
mod pod;
mod pod_cache;
mod pod_feed;
mod pool;
mod port_program;
mod ports;
mod progress;
mod proof;
mod readiness;
mod receipt;
mod refusal;
mod removal;
mod rights;
mod state;
mod stream;
mod sweep;
mod watch;

pub use access::{ClusterAccess, is_namespace};
pub use backend::KubernetesBackend;
pub use cluster_report::ClusterReport;
pub use guest_image::guest_image;
pub use manifest::manifest;
pub use options::{ClaimMount, KubernetesOptions, PodPull, VolumeRequest};
pub use owner::Owner;
pub use pool::pool_manifest;
pub use rights::MissingRight;
pub use state::was_used;
