//! Failures of a command that goes on with the next of several things.

use std::process::ExitCode;

use bastide::{Error, Result};

use super::Ui;

/// What failed, in order.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<Error>);

impl Failures {
    pub(crate) fn add(&mut self, error: Error) {
        self.0.push(error);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shows each of them; the last one is the caller's to show.
    pub(crate) fn report(mut self, ui: &mut Ui) -> Result<ExitCode> {
        let last = self.0.pop();
        for error in &self.0 {
            ui.failure(error);
        }
        last.map_or(Ok(ExitCode::SUCCESS), Err)
    }
}
