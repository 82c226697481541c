#![doc = include_str!("../README.md")]

pub mod admission;
pub mod chaos;
pub mod cluster;
pub mod conformance;
pub mod egress;
pub mod engine;
pub mod escape;
pub mod fuzz;
pub mod kubernetes;
pub mod live;
pub mod mounts;
pub mod suite;
pub mod tools;
pub mod vectors;
