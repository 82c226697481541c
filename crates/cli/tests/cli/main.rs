//! The command line tool, as a script would use it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod chaos;
mod deletion;
mod disk;
mod docker;
mod events;
mod files;
mod harness;
mod interleavings;
mod json;
mod lifetime;
mod run;
mod snapshots;
mod strangers;
