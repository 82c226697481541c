//! What a session does, whatever backend it runs on.

mod commands;
mod ending;
mod files;
mod lifecycle;
mod lifetime;
mod link;
mod output;
mod ports;
mod processes;
mod snapshots;
mod sources;
mod terminals;
mod users;
mod workspace;

use crate::suite::Trial;

/// Every conformance trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        commands::TRIALS,
        ending::TRIALS,
        lifecycle::TRIALS,
        lifetime::TRIALS,
        link::TRIALS,
        output::TRIALS,
        ports::TRIALS,
        processes::TRIALS,
        snapshots::TRIALS,
        sources::TRIALS,
        terminals::TRIALS,
        users::TRIALS,
        workspace::TRIALS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .chain(files::all())
    .collect()
}

/// Those that a guest has to pass whichever way it follows paths.
#[must_use]
pub fn path_trials() -> Vec<Trial> {
    files::of_paths()
}
