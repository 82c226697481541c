//! Suites one after the other: each is announced and timed, one that fails keeps none of the others from running, and
//! all are summed up at the end.

use std::time::{Duration, Instant};

use crate::shell::{Outcome, say, step};

/// What became of the suites.
#[derive(Debug)]
pub(super) struct Suites {
    all: usize,
    done: Vec<(String, Duration, Option<String>)>,
}

impl Suites {
    /// None yet, of so many.
    pub(super) fn of(all: usize) -> Self {
        Self { all, done: Vec::new() }
    }

    /// Runs one.
    pub(super) fn run(&mut self, name: &str, suite: impl FnOnce() -> Outcome) {
        step(&format!("{} of {}: {name}", self.done.len() + 1, self.all));
        let started = Instant::now();
        let failed = suite().err().map(|error| error.to_string());
        if let Some(why) = &failed {
            say(&format!("FAILED: {why}; going on with the next"));
        }
        self.done.push((name.to_owned(), started.elapsed(), failed));
    }

    /// Says what became of each; an error if one failed.
    pub(super) fn sum_up(self) -> Outcome {
        step("summary");
        for (name, took, failed) in &self.done {
            let word = if failed.is_some() { "FAILED" } else { "passed" };
            let seconds = took.as_secs();
            say(&format!("{word}  {:>3}:{:02}  {name}", seconds / 60, seconds % 60));
        }
        let failed: Vec<_> = self
            .done
            .iter()
            .filter_map(|(name, _, failed)| failed.as_ref().map(|why| format!("{name} ({why})")))
            .collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "{} of {} failed: {}",
                failed.len(),
                self.done.len(),
                failed.join("; ")
            )
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on_after_a_failure_and_names_it() {
        let mut suites = Suites::of(3);
        let mut ran = 0;
        for fails in [false, true, false] {
            suites.run(&format!("suite {ran}"), || {
                ran += 1;
                if fails { Err("broken".into()) } else { Ok(()) }
            });
        }
        assert_eq!(ran, 3);
        let said = suites.sum_up().map_err(|error| error.to_string());
        assert_eq!(said, Err("1 of 3 failed: suite 1 (broken)".to_owned()));
    }
}
