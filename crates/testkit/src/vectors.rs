//! Runs recorded cases of the reference against this project.
//!
//! A folder holds one JSON Lines file per area; every line is a case: a function, what it was
//! given, and what the reference answered. [`run`] feeds each input to the handler registered for
//! its function and compares the answers by the rules in [`compare`]. A handler is thin: it turns
//! the input into a call of a public function and the answer back into JSON.

mod case;
mod class;
mod compare;
mod differences;
mod line;
mod mount_calls;
mod projection;
mod report;
mod run;
mod session;
pub mod tree;
mod unpack;

// One line per area, here and in `AREAS`.
mod apply_patch;
mod archive_extract;
mod archives;
mod entries;
mod errors;
mod events;
mod exec_prepare;
mod manifest_render;
mod manifest_validate;
mod materialize;
mod mount_commands;
mod mount_security;
mod parse_ls;
mod paths;
mod permissions;
mod pty;
mod rclone_config;
mod session_events;
mod session_ops;
mod session_state;
mod shell_tool;
mod snapshot;
mod tar_safety;
mod token_truncation;
mod unix_local;
mod unix_local_live;

pub(crate) use archives::members;
pub use case::{Case, Handler, Scratch};
pub(crate) use case::{decode_base64, encode_base64};
pub use class::Class;
pub(crate) use compare::PYTHON_WORDING;
pub use differences::{Difference, differences};
pub use report::{Outcome, Report, Status};
pub use run::{default_dir, run};

/// Every area with the functions it answers.
#[rustfmt::skip] // One per line.
const AREAS: &[&[(&str, Handler)]] = &[
    apply_patch::FUNCTIONS,
    archive_extract::FUNCTIONS,
    archives::FUNCTIONS,
    entries::FUNCTIONS,
    errors::FUNCTIONS,
    events::FUNCTIONS,
    exec_prepare::FUNCTIONS,
    manifest_render::FUNCTIONS,
    manifest_validate::FUNCTIONS,
    materialize::FUNCTIONS,
    mount_commands::FUNCTIONS,
    mount_security::FUNCTIONS,
    parse_ls::FUNCTIONS,
    paths::FUNCTIONS,
    permissions::FUNCTIONS,
    pty::FUNCTIONS,
    rclone_config::FUNCTIONS,
    session_events::FUNCTIONS,
    session_ops::FUNCTIONS,
    session_state::FUNCTIONS,
    shell_tool::FUNCTIONS,
    snapshot::FUNCTIONS,
    tar_safety::FUNCTIONS,
    token_truncation::FUNCTIONS,
    unix_local::FUNCTIONS,
    unix_local_live::FUNCTIONS,
];
