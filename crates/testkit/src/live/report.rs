//! What came of a run, to be read.

use serde_json::Value;

use super::Outcome;
use super::compare::{Leaf, differences};
use super::rules::Rule;
use super::scenario::Scenario;

/// How many calls of a hundred rules may cover.
const MOST_COVERED: usize = 5;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    backend: &'static str,
    rules: Vec<Rule>,
    /// How many calls each rule covered.
    used: Vec<usize>,
    /// Whether every scenario ran, so that each rule had its chance.
    is_whole: bool,
    scenarios: usize,
    calls: usize,
    covered: usize,
    differing: Vec<Differing>,
}

/// A call that differs in a way nobody meant.
#[derive(Debug)]
struct Differing {
    scenario: String,
    /// Which of its calls.
    number: usize,
    operation: String,
    leaves: Vec<Leaf>,
}

impl Differing {
    fn text(&self) -> String {
        let Self { scenario, number, operation, leaves } = self;
        let mut lines = vec![format!("{scenario}, call {number}: {operation}")];
        for Leaf { field, reference, ours } in leaves {
            lines.push(format!("    {field}"));
            lines.push(format!("        reference  {reference}"));
            lines.push(format!("        ours       {ours}"));
        }
        lines.join("\n")
    }
}

impl Report {
    pub(super) fn new(backend: &'static str, rules: Vec<Rule>, is_whole: bool) -> Self {
        let used = vec![0; rules.len()];
        Self {
            backend,
            rules,
            used,
            is_whole,
            scenarios: 0,
            calls: 0,
            covered: 0,
            differing: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        scenario: &Scenario,
        theirs: &Outcome,
        own: &Outcome,
        tell: &mut impl FnMut(&str),
    ) {
        let known = self.differing.len();
        self.scenarios += 1;
        let operations = scenario.operations();
        let most = theirs.calls.len().max(own.calls.len());
        for number in 0..most {
            // Containers have a listing of their own at the end.
            let operation = operations.get(number).copied().unwrap_or("left");
            let nothing = Value::Null;
            let reference = theirs.calls.get(number).unwrap_or(&nothing);
            let ours = own.calls.get(number).unwrap_or(&nothing);
            self.compare(scenario, number, operation, reference, ours);
        }
        if let (Some(reference), Some(ours)) = (&theirs.left, &own.left) {
            self.compare(scenario, most, "left", reference, ours);
        }
        self.differing.iter().skip(known).for_each(|differing| tell(&differing.text()));
    }

    fn compare(
        &mut self,
        scenario: &Scenario,
        number: usize,
        operation: &str,
        reference: &Value,
        ours: &Value,
    ) {
        self.calls += 1;
        let (reference, ours) = comparable(operation, reference, ours);
        let mut leaves = differences(&reference, &ours);
        if leaves.is_empty() {
            return;
        }
        let mut is_covered = false;
        leaves.retain(|leaf| {
            let rule = self.rules.iter().position(|rule| rule.covers(operation, leaf));
            if let Some(rule) = rule {
                self.used[rule] += 1;
                is_covered = true;
            }
            rule.is_none()
        });
        if leaves.is_empty() {
            self.covered += usize::from(is_covered);
            return;
        }
        let (scenario, operation) = (scenario.id.clone(), operation.to_owned());
        self.differing.push(Differing { scenario, number, operation, leaves });
    }

    /// Whether the run passes.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.differing.is_empty() && self.unused().next().is_none() && !self.covers_too_much()
    }

    fn covers_too_much(&self) -> bool {
        self.is_whole && self.covered * 100 > self.calls * MOST_COVERED
    }

    fn unused(&self) -> impl Iterator<Item = &Rule> {
        let rules = self.rules.iter().zip(&self.used);
        rules.filter(|(_, used)| self.is_whole && **used == 0).map(|(rule, _)| rule)
    }

    /// What all of it comes to.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        for Rule { line, .. } in self.unused() {
            lines.push(format!("docs/differences.md:{line}: the rule covers nothing"));
        }
        if self.covers_too_much() {
            lines.push(format!("rules cover more than {MOST_COVERED} of a hundred calls"));
        }
        let Self { backend, scenarios, calls, covered, .. } = self;
        let differing = self.differing.len();
        let alike = calls - covered - differing;
        lines.push(format!(
            "{backend}: {scenarios} scenarios, {calls} calls: {alike} alike, {covered} by a rule, \
             {differing} different"
        ));
        lines.join("\n")
    }
}

/// Both sides without events only one of them can have.
fn comparable(operation: &str, reference: &Value, ours: &Value) -> (Value, Value) {
    let (mut reference, mut ours) = (reference.clone(), ours.clone());
    let told = |call: &Value| call["events"].as_array().map_or(0, Vec::len);
    let failed = |call: &Value| call.get("error").is_some_and(|error| !error.is_null());
    let most = match operation {
        // A session that cannot be made has nobody to tell; the reference makes one and then fails.
        "open" if failed(&reference) && failed(&ours) && told(&ours) == 0 => 0,
        // Members of an archive are one request, and told by its own `write`.
        "extract" => 2,
        // So are entries of a manifest, and there are no commands.
        "apply_manifest" => 0,
        _ => usize::MAX,
    };
    for call in [&mut reference, &mut ours] {
        if let Some(events) = call.get_mut("events").and_then(Value::as_array_mut) {
            events.truncate(most);
        }
    }
    (reference, ours)
}
