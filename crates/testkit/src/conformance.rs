//! What a session does, whatever backend it runs on.

mod commands;
mod ending;
mod link;
mod workspace;

use crate::suite::Trial;

/// Every conformance trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [commands::TRIALS, ending::TRIALS, link::TRIALS, workspace::TRIALS].concat()
}
