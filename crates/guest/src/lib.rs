#![doc = include_str!("../README.md")]

mod accounts;
pub mod container;
pub mod deliver;
pub mod dial;
mod egress_listeners;
mod init;
mod jail;
mod launcher;
mod packet;
mod port_channel;
mod removable_walls;
mod server;
mod supervisor;
mod sys;
mod tree_usage;
pub mod warden;
