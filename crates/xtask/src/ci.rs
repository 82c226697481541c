//! `cargo xtask ci`

use crate::shell::Outcome;
use crate::{check, test};

/// What CI does. It ends in the test command of the README.
pub(crate) fn run() -> Outcome {
    check::run()?;
    test::run(&test::Arguments { full: false, seed: None, kubernetes: false, require_all: false })
}
