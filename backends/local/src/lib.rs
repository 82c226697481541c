#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod boot;
mod descendants;
mod descriptors;
mod egress;
mod groups;
mod homes;
mod host;
mod image;
mod ladder;
mod layout;
mod mounts;
mod namespaces;
mod orphans;
mod plan;
mod receipt;
mod refusal;
mod side_channel;
mod spares;
mod subordinate;
mod toolchains;
mod user;
mod warden;
mod zygote;

pub use backend::LocalBackend;
pub use bastide_proto::boot::Resolver;
