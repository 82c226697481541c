//! What a session does, whatever backend it runs on.

mod commands;
mod ending;
mod lifetime;
mod link;
mod output;
mod ports;
mod processes;
mod terminals;
mod workspace;

use crate::suite::Trial;

/// Every conformance trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        commands::TRIALS,
        ending::TRIALS,
        lifetime::TRIALS,
        link::TRIALS,
        output::TRIALS,
        ports::TRIALS,
        processes::TRIALS,
        terminals::TRIALS,
        workspace::TRIALS,
    ]
    .concat()
}
