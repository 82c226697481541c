#![doc = include_str!("../README.md")]

pub mod cluster;
pub mod engine;
pub mod kubernetes;
