//! What a session does, whatever backend it runs on.

mod commands;
mod ending;
mod link;
mod output;
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
        link::TRIALS,
        output::TRIALS,
        processes::TRIALS,
        terminals::TRIALS,
        workspace::TRIALS,
    ]
    .concat()
}
