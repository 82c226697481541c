//! The program on real mounts, against real servers on this machine.

mod harness;
mod proxy;
mod servers;

mod caching;
mod faults;
mod files;
mod hostile;
mod probing;
mod programs;
mod random;
mod recovery;
mod walls;
