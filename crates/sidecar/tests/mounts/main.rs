//! The program on real mounts, against real servers on this machine.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "what fails here is a test"
)]

mod harness;
mod proxy;
mod servers;

mod caching;
mod faults;
mod files;
mod hostile;
mod keeping;
mod page;
mod probing;
mod programs;
mod random;
mod recovery;
mod walls;
