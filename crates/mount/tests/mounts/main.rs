//! The program on real mounts, against real servers on this machine.

mod harness;
mod servers;

mod files;
