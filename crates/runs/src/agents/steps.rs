//! An agent's stream of events: what is shown of it, and what it comes to.

use std::collections::HashSet;

use serde_json::Value;

use super::{StepRule, StreamFormat, StreamSpec};
use crate::stream::{StreamFilter, StreamName};

/// The most of a detail that is shown, in lines and characters.
const DETAIL_LINES: usize = 12;
const DETAIL_CHARS: usize = 1200;

/// The most different lines that are remembered to be shown once.
const MOST_REMEMBERED: usize = 10_000;

/// What is at a dotted path; `*` is every element of a list. The first that is there.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let go_on = |found: &'v Value| match rest {
        Some(rest) => at(found, rest),
        None => Some(found),
    };
    match (name, value) {
        ("*", Value::Array(items)) => items.iter().find_map(go_on),
        (_, Value::Array(items)) => go_on(items.get(name.parse::<usize>().ok()?)?),
        (_, Value::Object(map)) => go_on(map.get(name)?),
        _ => None,
    }
}

/// Whether somewhere at a path is a value.
fn has(value: &Value, path: &str, wanted: &Value) -> bool {
    let (name, rest) = match path.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (path, None),
    };
    let fits = |found: &Value| match rest {
        Some(rest) => has(found, rest, wanted),
        None => wanted == "*" || found == wanted,
    };
    match (name, value) {
        ("*", Value::Array(items)) => items.iter().any(fits),
        (_, Value::Object(map)) => map.get(name).is_some_and(fits),
        (_, Value::Array(items)) => {
            name.parse::<usize>().ok().and_then(|at| items.get(at)).is_some_and(fits)
        }
        _ => false,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Shows one line a step. What an agent says that is no event is shown as it is, and events that no
/// rule names are not shown.
#[derive(Debug)]
pub struct StepFilter {
    spec: StreamSpec,
    shown: HashSet<String>,
}

impl StepFilter {
    /// For an agent whose output reads like this.
    #[must_use]
    pub fn new(spec: &StreamSpec) -> Self {
        Self { spec: spec.clone(), shown: HashSet::new() }
    }

    fn show(&mut self, event: &Value) -> Option<String> {
        let matches =
            |rule: &&StepRule| rule.when.iter().all(|(path, want)| has(event, path, want));
        let rule = self.spec.steps.iter().find(matches)?;
        if rule.show.is_empty() {
            return None;
        }
        let mut line = fill(&rule.show, event);
        if rule.once && self.shown.len() < MOST_REMEMBERED && !self.shown.insert(line.clone()) {
            return None;
        }
        if let Some(detail) = rule.detail.as_deref().and_then(|path| at(event, path)) {
            let detail = text(detail);
            let cut: String = detail.trim_end().chars().take(DETAIL_CHARS).collect();
            for part in cut.lines().take(DETAIL_LINES) {
                line.push_str("\n  ");
                line.push_str(part);
            }
        }
        Some(line)
    }
}

impl StreamFilter for StepFilter {
    fn filter(&mut self, line: &str, stream: StreamName) -> Option<String> {
        if line.trim().is_empty() {
            return None;
        }
        if self.spec.format == StreamFormat::Jsonl
            && stream == StreamName::Stdout
            && let Ok(event @ Value::Object(_)) = serde_json::from_str::<Value>(line)
        {
            return self.show(&event);
        }
        Some(line.to_owned())
    }
}

/// A template with what is at each `{PATH}` of it; what is not there is left out.
fn fill(template: &str, event: &Value) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((path, after)) = after.split_once('}') else {
            out.push('{');
            rest = after;
            continue;
        };
        if let Some(value) = at(event, path) {
            out.push_str(&text(value));
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// What an agent's events come to.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct EventSummary {
    /// All of them.
    pub events: Vec<Value>,
    /// The agent's last word.
    pub output: Option<String>,
    /// Its session.
    pub session_id: Option<String>,
    /// Its thread.
    pub thread_id: Option<String>,
    /// What it used.
    pub usage: Option<Value>,
    /// What that cost.
    pub cost: Option<Value>,
}

impl EventSummary {
    /// Reads the events out of what an agent said.
    #[must_use]
    pub fn of(stdout: &str, spec: &StreamSpec) -> Self {
        let mut summary = Self { events: events(stdout), ..Self::default() };
        let mut found = Self::default();
        for event in &summary.events {
            let first = |paths: &[String]| {
                paths
                    .iter()
                    .find_map(|path| at(event, path))
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            };
            let last = |paths: &[String]| paths.iter().find_map(|path| at(event, path)).cloned();
            found.session_id = found.session_id.or_else(|| first(&spec.session));
            found.thread_id = found.thread_id.or_else(|| first(&spec.thread));
            found.usage = last(&spec.usage).filter(Value::is_object).or(found.usage);
            found.cost = last(&spec.cost).or(found.cost);
            found.output = word(event, spec).or(found.output);
        }
        let Self { output, session_id, thread_id, usage, cost, .. } = found;
        summary = Self { output, session_id, thread_id, usage, cost, ..summary };
        summary
    }
}

/// The agent's word in an event. A rule is what must be so, and under `text` where the word is.
fn word(event: &Value, spec: &StreamSpec) -> Option<String> {
    spec.output.iter().find_map(|rule| {
        let place = rule.get("text")?.as_str()?;
        let mut conditions = rule.iter().filter(|(path, _)| *path != "text");
        let fits = conditions.all(|(path, wanted)| has(event, path, wanted));
        fits.then(|| at(event, place)).flatten()?.as_str().map(str::to_owned)
    })
}

/// The objects in lines of JSON; lists are taken apart, and what is no JSON is passed over.
fn events(stdout: &str) -> Vec<Value> {
    let mut events = Vec::new();
    for line in stdout.lines() {
        match serde_json::from_str(line) {
            Ok(event @ Value::Object(_)) => events.push(event),
            Ok(Value::Array(items)) => events.extend(items.into_iter().filter(Value::is_object)),
            _ => {}
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::AgentSpec;

    fn filter(agent: &str) -> StepFilter {
        StepFilter::new(&AgentSpec::named(agent).unwrap().stream)
    }

    #[test]
    fn shows_one_line_a_step_of_codex() {
        let mut codex = filter("codex");
        let mut show = |line: &str| codex.filter(line, StreamName::Stdout);
        let message =
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"Hello\nthere"}}"#;
        assert_eq!(show(message).unwrap(), "agent:\n  Hello\n  there");
        let started =
            r#"{"type":"item.started","item":{"type":"command_execution","command":"make"}}"#;
        assert_eq!(show(started).unwrap(), "cmd: make");
        // Said once.
        assert_eq!(show(started), None);
        let failed = r#"{"type":"item.completed","item":{"type":"command_execution","command":"make","exit_code":127,"status":"failed","aggregated_output":"no make\n"}}"#;
        assert_eq!(show(failed).unwrap(), "fail: make (exit 127)\n  no make");
        let fine = r#"{"type":"item.completed","item":{"type":"command_execution","command":"make","exit_code":0,"status":"completed"}}"#;
        assert_eq!(show(fine).unwrap(), "ok: make");
        // The reference prints these raw.
        assert_eq!(show(r#"{"type":"turn.started"}"#), None);
        assert_eq!(show("plain words").unwrap(), "plain words");
        assert_eq!(show("  "), None);
    }

    #[test]
    fn reads_what_events_come_to() {
        let spec = AgentSpec::named("codex").unwrap().stream;
        let said = concat!(
            "noise\n",
            r#"{"type":"thread.started","thread_id":"t1"}"#,
            "\n",
            r#"[{"type":"item.completed","item":{"type":"agent_message","text":"first"}},3]"#,
            "\n",
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"done"}}"#,
            "\n",
            r#"{"type":"turn.completed","usage":{"output_tokens":7}}"#,
            "\n",
        );
        let summary = EventSummary::of(said, &spec);
        assert_eq!(summary.events.len(), 4);
        assert_eq!(summary.output.as_deref(), Some("done"));
        assert_eq!(summary.thread_id.as_deref(), Some("t1"));
        assert_eq!(summary.usage.unwrap()["output_tokens"], 7);
    }

    #[test]
    fn shows_steps_of_claude() {
        let mut claude = filter("claude");
        let mut show = |line: &str| claude.filter(line, StreamName::Stdout);
        let tool = r#"{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Bash","input":{"command":"ls"}}]}}"#;
        assert_eq!(show(tool).unwrap(), "Bash: ls");
        let text = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Hi"}]}}"#;
        assert_eq!(show(text).unwrap(), "agent:\n  Hi");
        let spec = AgentSpec::named("claude").unwrap().stream;
        let end = r#"{"type":"result","result":"done","session_id":"s","total_cost_usd":0.1,"usage":{"input_tokens":1}}"#;
        let summary = EventSummary::of(end, &spec);
        assert_eq!(summary.output.as_deref(), Some("done"));
        assert_eq!(summary.session_id.as_deref(), Some("s"));
        assert_eq!(summary.cost.unwrap().to_string(), "0.1");
    }
}
