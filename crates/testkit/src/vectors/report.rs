//! What a run found, and how it is shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Class, differences};

/// At most this many of a hundred contract cases may be known differences.
const KNOWN_PERCENT: usize = 3;

/// How one case ended.
#[derive(Debug, Clone)]
pub enum Status {
    /// Both sides answered alike.
    Passed,
    /// They did not, and no rule says they should not.
    Failed {
        /// What differs, in short.
        reason: String,
        /// What the reference answered.
        expected: Value,
        /// What this project answered.
        got: Value,
    },
    /// They did not, as a rule says.
    Known {
        /// The rule's name.
        rule: &'static str,
    },
    /// The code it needs does not exist yet.
    NotYet,
    /// Counted, not run: how the reference works inside.
    Mechanism,
    /// Counted, not run: the reference's prose.
    Wording,
}

/// One case and how it ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The file it stands in.
    pub area: String,
    /// Its id, or the place of a line that cannot be read.
    pub id: String,
    /// The function it is about.
    pub function: String,
    /// How far that function binds.
    pub class: Class,
    /// How it ended.
    pub status: Status,
}

/// Every case of a run.
#[derive(Debug)]
pub struct Report {
    outcomes: Vec<Outcome>,
}

/// How many cases ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    cases: usize,
    passed: usize,
    failed: usize,
    known: usize,
    not_yet: usize,
    mechanism: usize,
    wording: usize,
}

impl Counts {
    fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        let mut counts = Self::default();
        for outcome in outcomes {
            counts.cases += 1;
            *match outcome.status {
                Status::Passed => &mut counts.passed,
                Status::Failed { .. } => &mut counts.failed,
                Status::Known { .. } => &mut counts.known,
                Status::NotYet => &mut counts.not_yet,
                Status::Mechanism => &mut counts.mechanism,
                Status::Wording => &mut counts.wording,
            } += 1;
        }
        counts
    }

    fn fields(&self) -> [(&'static str, usize); 7] {
        [
            ("cases", self.cases),
            ("passed", self.passed),
            ("failed", self.failed),
            ("known", self.known),
            ("not_yet", self.not_yet),
            ("mechanism", self.mechanism),
            ("wording", self.wording),
        ]
    }
}

impl Report {
    pub(crate) fn new(outcomes: Vec<Outcome>) -> Self {
        Self { outcomes }
    }

    /// Every case and what became of it.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The cases that failed, in the order they were run.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.status, Status::Failed { .. }))
    }

    /// Whether there are few enough known differences.
    #[must_use]
    pub fn known_is_within_bounds(&self) -> bool {
        let contract = self.outcomes.iter().filter(|outcome| outcome.class == Class::Contract);
        Counts::of(self.outcomes.iter()).known * 100 <= contract.count() * KNOWN_PERCENT
    }

    /// Whether the run as a whole succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.failures().next().is_none() && self.known_is_within_bounds()
    }

    /// The report for people: a table, the rules that matched, the failures, the summary line.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut groups: BTreeMap<(&str, Class), Vec<&Outcome>> = BTreeMap::new();
        for outcome in &self.outcomes {
            groups.entry((&outcome.area, outcome.class)).or_default().push(outcome);
        }
        // Writing to a string cannot fail.
        for ((area, class), outcomes) in groups {
            let _ = write!(text, "{area:<18} {:<11}", class.name());
            for (name, count) in Counts::of(outcomes.into_iter()).fields() {
                if count > 0 {
                    let _ = write!(text, " {name}={count}");
                }
            }
            text.push('\n');
        }
        for rule in differences() {
            let covers = |outcome: &&Outcome| matches!(outcome.status, Status::Known { rule: name } if name == rule.name);
            let count = self.outcomes.iter().filter(covers).count();
            let _ = writeln!(text, "known difference {} covers {count}: {}", rule.name, rule.ours);
        }
        if !self.known_is_within_bounds() {
            let _ = writeln!(
                text,
                "more than {KNOWN_PERCENT} % of the contract cases are known differences"
            );
        }
        for outcome in self.failures() {
            if let Status::Failed { reason, .. } = &outcome.status {
                let _ = writeln!(text, "FAILED {} {}: {reason}", outcome.id, outcome.function);
            }
        }
        text + &self.summary()
    }

    /// The report for programs: one JSON object per failure, then the summary line.
    #[must_use]
    pub fn json_lines(&self) -> String {
        let mut text = String::new();
        for outcome in self.failures() {
            if let Status::Failed { reason, expected, got } = &outcome.status {
                let failure = json!({
                    "id": outcome.id,
                    "fn": outcome.function,
                    "class": outcome.class.name(),
                    "reason": reason,
                    "expected": expected,
                    "got": got,
                });
                let _ = writeln!(text, "{failure}");
            }
        }
        text + &self.summary()
    }

    fn summary(&self) -> String {
        let fields = Counts::of(self.outcomes.iter()).fields();
        let fields = fields.map(|(name, count)| format!("{name}={count}"));
        format!("vectors: {}", fields.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(class: Class, status: Status) -> Outcome {
        let text = String::new;
        Outcome { area: text(), id: text(), function: text(), class, status }
    }

    #[test]
    fn ends_in_one_line_whose_numbers_sum() {
        let report = Report::new(vec![
            outcome(Class::Contract, Status::Passed),
            outcome(Class::Projection, Status::NotYet),
            outcome(Class::Wording, Status::Wording),
        ]);
        let summary = "vectors: cases=3 passed=1 failed=0 known=0 not_yet=1 mechanism=0 wording=1";
        assert_eq!(report.text().lines().last(), Some(summary));
        assert_eq!(report.json_lines(), summary);
        assert!(report.is_success());
    }

    #[test]
    fn too_many_known_differences_fail_the_run() {
        let known = || outcome(Class::Contract, Status::Known { rule: "r" });
        let passed = || outcome(Class::Contract, Status::Passed);
        let with = |known_cases: usize| {
            let known = std::iter::repeat_with(known).take(known_cases);
            Report::new(known.chain(std::iter::repeat_with(passed)).take(100).collect())
        };
        assert!(with(3).is_success());
        assert!(!with(4).is_success());
    }
}
