//! Whole trees: looked through for the host to save them, and put back.

mod attributes;
mod build;
mod fetch;
mod restore;
mod scan;
mod stability;
mod swap;
mod sys;
mod unlocked;

pub(super) use restore::run as restore;
pub(super) use scan::run as scan;
pub(super) use unlocked::unlock;
