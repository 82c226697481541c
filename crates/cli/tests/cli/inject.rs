//! Faults of the file system, injected into the tool at its n-th call.
//!
//! A supervisor traces the tool with ptrace and lets one system call fail without having happened. That
//! sees every call, however it is made; an interposed C library would miss those made directly. What the
//! tool starts (wardens, guests) is not traced.

mod sys;

use std::path::Path;
use std::process::{Command, Output};

pub(crate) use sys::Call;

/// Which call fails, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Counted from one, over all threads of the tool.
    pub(crate) at: usize,
    pub(crate) outcome: Outcome,
}

/// What happens instead of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    /// It fails with this reason.
    Errno(i32),
    /// The tool is killed.
    Killed,
}

/// A run of the tool.
pub(crate) struct Traced {
    pub(crate) output: Output,
    /// The calls that count, in order. Where a fault was injected it is the last one.
    pub(crate) calls: Vec<Call>,
}

/// Runs the tool to its end. `None` in the place of a fault only counts. Calls about files outside of
/// `within` do not count: what the loader and the runtime read is not the tool's doing.
pub(crate) fn run(command: &mut Command, within: &Path, fault: Option<Fault>) -> Traced {
    sys::run(command, within, fault)
}
