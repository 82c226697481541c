//! The program as a session has it, against real servers on loopback.
//!
//! Names stand for addresses of 127.64.0.0/15, all of which are local: whoever dials one is accepted by a listener of
//! the program, as every address is in an egress namespace.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a trial that fails says so"
)]

mod bounds;
mod change;
mod destinations;
mod explained;
mod forms;
mod names;
mod opaque;
mod packages;
mod plain;
mod read;
mod secret;
mod support;
