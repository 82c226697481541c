//! Runs, their workspaces and what is collected from them.
#![expect(
    clippy::unwrap_used,
    clippy::type_complexity,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test that has no repository to work in cannot go on, and its tables are read once"
)]

mod changes;
mod docker;
mod hostile;
mod killed;
mod modes;
mod reference;
mod repository;
mod sandboxed;
mod sbx;
