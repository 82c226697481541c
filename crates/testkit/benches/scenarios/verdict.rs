//! Which promises hold.

use crate::instructions::{COUNTER, Counted};
use crate::measured::{Measured, PromiseResult};
use crate::scenario::Promise;

/// All promises so far.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    held: usize,
    broken: usize,
    unmeasured: usize,
}

impl Verdicts {
    pub(crate) fn add(&mut self, measured: &Measured, without: &[String]) {
        for promise in measured.scenario.promises {
            match measured.kept(*promise) {
                PromiseResult::Yes => self.held += 1,
                PromiseResult::No => self.broken += 1,
                PromiseResult::Unknown => {
                    let peer = match promise {
                        Promise::Times(_, peer) => peer.name(),
                        Promise::Milliseconds(_) => measured.scenario.ours.name(),
                    };
                    if !without.iter().any(|name| name == peer) {
                        self.unmeasured += 1;
                    }
                }
            }
        }
    }

    /// Promises that need nobody to compare with.
    pub(crate) fn add_all(&mut self, promises: &[(&str, bool)]) {
        for (_, holds) in promises {
            if *holds {
                self.held += 1;
            } else {
                self.broken += 1;
            }
        }
    }

    pub(crate) fn add_counted(&mut self, counted: &Counted, without: &[String]) {
        match counted.holds() {
            Some(true) => self.held += 1,
            Some(false) => self.broken += 1,
            None if without.iter().any(|name| name == COUNTER) => {}
            None => self.unmeasured += 1,
        }
    }

    pub(crate) fn all_held(&self) -> bool {
        self.broken == 0 && self.unmeasured == 0
    }

    pub(crate) fn text(&self) -> String {
        let Self { held, broken, unmeasured } = self;
        format!("bench: held={held} broken={broken} unmeasured={unmeasured}")
    }
}

/// Promises that need nobody to compare with, a line each.
pub(crate) fn lines(promises: &[(&str, bool)]) -> String {
    let line = |(promise, holds): &(&str, bool)| {
        let (mark, what) = if *holds { ("✓", "holds") } else { ("✗", "does not hold") };
        format!("  {mark} {promise} {what}\n")
    };
    promises.iter().map(line).collect()
}
