//! The command line tool, as a script would use it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agent;
mod agent_ends;
mod chaos;
mod deletion;
mod disk;
mod docker;
mod events;
mod faults;
mod files;
mod first_hour;
mod harness;
mod hostile;
mod inject;
mod interleavings;
mod json;
mod kubernetes;
mod ladder;
mod leases;
mod lifetime;
mod mounts;
mod net;
mod other_users;
mod owned_roots;
mod pages;
mod real_agents;
mod recording;
mod run;
mod said;
mod sbx;
mod snapshots;
mod terminal;
mod undo;
mod upgrade;
