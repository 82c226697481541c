//! What a session does, whatever backend it runs on.

mod commands;
mod deletion;
mod ending;
mod events;
mod files;
mod idle;
mod last_save;
mod leases;
mod lifecycle;
mod lifetime;
mod link;
mod mounts;
mod output;
mod ports;
mod processes;
mod reference;
mod snapshots;
mod sources;
mod terminals;
mod undo;
mod usage;
mod users;
mod workspace;

pub use snapshots::times_tell;

use crate::suite::Trial;

/// Every conformance trial.
#[must_use]
pub fn trials() -> Vec<Trial> {
    [
        commands::TRIALS,
        deletion::TRIALS,
        ending::TRIALS,
        idle::TRIALS,
        last_save::TRIALS,
        leases::TRIALS,
        lifecycle::TRIALS,
        lifetime::TRIALS,
        mounts::TRIALS,
        link::TRIALS,
        output::TRIALS,
        ports::TRIALS,
        processes::TRIALS,
        reference::TRIALS,
        snapshots::TRIALS,
        sources::TRIALS,
        terminals::TRIALS,
        undo::TRIALS,
        usage::TRIALS,
        users::TRIALS,
        workspace::TRIALS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .chain(files::all())
    .chain(events::all())
    .collect()
}

/// Those that hold where a session has the host's own paths and ids: it has no network of its own to
/// publish ports of, and no users.
#[must_use]
pub fn trials_on_host() -> Vec<Trial> {
    let elsewhere = [ports::TRIALS, users::TRIALS].concat();
    let is_here = |trial: &Trial| elsewhere.iter().all(|other| other.name != trial.name);
    trials().into_iter().filter(is_here).collect()
}

/// Those that a guest has to pass whichever way it follows paths.
#[must_use]
pub fn path_trials() -> Vec<Trial> {
    files::of_paths()
}
