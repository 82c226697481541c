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
    differing: usize,
    /// How often the reference was asked once more.
    repeats: usize,
}

/// What came of a scenario.
pub(super) struct Done {
    pub(super) judged: Vec<CallVerdict>,
    pub(super) repeats: usize,
}

/// What came of a call, on both sides.
pub(super) struct CallVerdict {
    /// The rules that cover a difference, by their place.
    rules: Vec<usize>,
    /// What differs in a way nobody meant, to be read.
    differing: Option<String>,
}

impl CallVerdict {
    pub(super) fn is_alike(&self) -> bool {
        self.differing.is_none()
    }
}

/// Compares what both sides made of a scenario, call by call.
pub(super) fn judge(
    rules: &[Rule],
    scenario: &Scenario,
    theirs: &Outcome,
    own: &Outcome,
) -> Vec<CallVerdict> {
    let operations = scenario.operations();
    let most = theirs.calls.len().max(own.calls.len());
    let nothing = Value::Null;
    let mut judged = Vec::new();
    for number in 0..most {
        // Containers have a listing of their own at the end.
        let operation = operations.get(number).copied().unwrap_or("left");
        let reference = theirs.calls.get(number).unwrap_or(&nothing);
        let ours = own.calls.get(number).unwrap_or(&nothing);
        let call = Call { scenario, number, operation };
        judged.push(call.judge(rules, reference, ours));
    }
    if let (Some(reference), Some(ours)) = (&theirs.left, &own.left) {
        let call = Call { scenario, number: most, operation: "left" };
        judged.push(call.judge(rules, reference, ours));
    }
    judged
}

struct Call<'a> {
    scenario: &'a Scenario,
    number: usize,
    operation: &'a str,
}

impl Call<'_> {
    fn judge(&self, rules: &[Rule], reference: &Value, ours: &Value) -> CallVerdict {
        let (reference, ours) = comparable(self.operation, reference, ours);
        let mut leaves = differences(&reference, &ours);
        let mut used = Vec::new();
        leaves.retain(|leaf| {
            let rule = rules.iter().position(|rule| rule.covers(self.operation, leaf));
            used.extend(rule);
            rule.is_none()
        });
        let differing = (!leaves.is_empty()).then(|| self.text(&leaves));
        CallVerdict { rules: used, differing }
    }

    fn text(&self, leaves: &[Leaf]) -> String {
        let Self { scenario, number, operation } = self;
        let mut lines = vec![format!("{}, call {number}: {operation}", scenario.id)];
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
            differing: 0,
            repeats: 0,
        }
    }

    pub(super) fn add(&mut self, done: &Done, tell: &mut impl FnMut(&str)) {
        self.scenarios += 1;
        self.repeats += done.repeats;
        for CallVerdict { rules, differing } in &done.judged {
            self.calls += 1;
            rules.iter().for_each(|rule| self.used[*rule] += 1);
            self.covered += usize::from(differing.is_none() && !rules.is_empty());
            if let Some(differing) = differing {
                tell(differing);
                self.differing += 1;
            }
        }
    }

    /// Whether the run passes.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.differing == 0 && self.unused().next().is_none() && !self.covers_too_much()
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
        let Self { backend, scenarios, calls, covered, differing, .. } = self;
        let alike = calls - covered - differing;
        if self.repeats > 0 {
            lines.push(format!("the reference was asked again {} times", self.repeats));
        }
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
    let reported = |call: &Value| call["events"].as_array().map_or(0, Vec::len);
    let failed = |call: &Value| call.get("error").is_some_and(|error| !error.is_null());
    let most = match operation {
        // A session that cannot be made has nobody to tell; the reference makes one and then fails.
        "open" if failed(&reference) && failed(&ours) && reported(&ours) == 0 => 0,
        // Members of an archive are one request, and told by its own `write`.
        "extract" => 2,
        // So are entries of a manifest, and there are no commands. Calls that do not wait for each other are told in any order.
        "apply_manifest" | "together" => 0,
        _ => usize::MAX,
    };
    for call in [&mut reference, &mut ours] {
        if let Some(events) = call.get_mut("events").and_then(Value::as_array_mut) {
            events.truncate(most);
        }
    }
    (reference, ours)
}
