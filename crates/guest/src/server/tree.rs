//! Whole trees: looked through for the host to save them, and put back.

mod attributes;
mod build;
mod fetch;
mod mode_guard;
mod restore;
mod scan;
mod stability;
mod swap;
mod sys;

pub(super) use mode_guard::unlock;
pub(super) use restore::run as restore;
pub(super) use scan::run as scan;
