//! Runs, their workspaces and what is collected from them.

mod changes;
mod hostile;
mod killed;
mod modes;
mod repository;
mod sandboxed;
