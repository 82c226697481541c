//! What a scenario took, for everybody.

use std::time::Duration;

use crate::scenario::{Promise, Scenario};
use crate::statistics::{percentile, ratio_interval};
use crate::subject::Subject;

/// The measurements of one scenario, in milliseconds.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) scenario: Scenario,
    /// Everybody's, in the order of the rounds.
    pub(crate) subjects: Vec<(Subject, Vec<f64>)>,
}

/// How we compare with one peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    /// Our median over theirs.
    pub(crate) of_medians: f64,
    /// The lower end of its 95 % interval.
    pub(crate) low: f64,
    /// The upper end.
    pub(crate) high: f64,
}

/// What became of a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromiseResult {
    Yes,
    No,
    /// Nobody was there to compare with.
    Unknown,
}

impl Measured {
    pub(crate) fn new(scenario: Scenario) -> Self {
        Self { scenario, subjects: Vec::new() }
    }

    pub(crate) fn add(&mut self, subject: Subject, took: Duration) {
        let took = took.as_secs_f64() * 1000.0;
        match self.subjects.iter_mut().find(|(one, _)| *one == subject) {
            Some((_, all)) => all.push(took),
            None => self.subjects.push((subject, vec![took])),
        }
    }

    fn of(&self, subject: Subject) -> Option<&[f64]> {
        self.subjects.iter().find(|(one, _)| *one == subject).map(|(_, all)| all.as_slice())
    }

    pub(crate) fn ratio(&self, peer: Subject) -> Option<Ratio> {
        let (ours, theirs) = (self.of(self.scenario.ours)?, self.of(peer)?);
        let (low, high) = ratio_interval(ours, theirs);
        Some(Ratio { of_medians: percentile(ours, 50) / percentile(theirs, 50), low, high })
    }

    /// Whether the ratio of the medians is what was promised.
    pub(crate) fn kept(&self, promise: Promise) -> PromiseResult {
        let holds = match promise {
            Promise::Times(bound, peer) => self.ratio(peer).map(|ratio| ratio.of_medians <= bound),
            Promise::Milliseconds(bound) => {
                self.of(self.scenario.ours).map(|ours| percentile(ours, 50) <= bound)
            }
        };
        match holds {
            Some(true) => PromiseResult::Yes,
            Some(false) => PromiseResult::No,
            None => PromiseResult::Unknown,
        }
    }

    /// Whether no promise is broken.
    pub(crate) fn holds(&self) -> bool {
        self.scenario.promises.iter().all(|promise| self.kept(*promise) != PromiseResult::No)
    }
}
