#![doc = include_str!("../README.md")]

pub mod admission;
pub mod chaos;
pub mod conformance;
pub mod egress;
pub mod escape;
pub mod fuzz;
pub mod live;
pub mod manifest_page;
pub mod mounts;
pub mod suite;
pub mod tools;
pub mod vectors;

pub use bastide_test_servers::{cluster, engine, kubernetes};
