//! Operations, counted.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use bastide_model::events::Event;

use super::wire::{Message, Value, attribute, resource, scope};

/// Counts since the beginning, not since the last message.
const CUMULATIVE: u64 = 2;

/// Where the classes of durations end, in seconds.
const BOUNDS: [f64; 14] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

/// The most series that are kept apart; names of operations and errors are ours and few.
const MOST: usize = 1000;

/// Attributes by which a count is kept apart.
type Series = Vec<(&'static str, String)>;

/// Everything that was counted so far.
#[derive(Debug)]
pub(super) struct Metrics {
    since: u64,
    counts: BTreeMap<(&'static str, Series), u64>,
    durations: BTreeMap<String, Durations>,
}

#[derive(Debug, Default)]
struct Durations {
    count: u64,
    sum: f64,
    classes: [u64; BOUNDS.len() + 1],
}

impl Metrics {
    pub(super) fn new() -> Self {
        Self { since: now(), counts: BTreeMap::new(), durations: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.durations.is_empty()
    }

    /// Counts an operation that ended.
    pub(super) fn add(&mut self, event: &Event) {
        let Some(finish) = &event.finish else { return };
        let operation = ("operation", event.op.to_owned());
        self.count("bastide.operations", vec![operation.clone()], 1);
        match event.op {
            "exec" | "spawn" => self.count("bastide.execs", Vec::new(), 1),
            "start" if finish.ok => self.count("bastide.sessions", Vec::new(), 1),
            _ => {}
        }
        if !finish.ok {
            let class = finish.error_type.clone();
            let class = class.unwrap_or_else(|| "ExecNonZeroError".to_owned());
            self.count("bastide.failures", vec![operation, ("error.type", class)], 1);
        }
        let bytes = |key: &str| event.data.get(key).and_then(serde_json::Value::as_u64);
        let from = match event.op {
            "exec" | "attach" => {
                bytes("stdout_size").unwrap_or(0) + bytes("stderr_size").unwrap_or(0)
            }
            "read" | "persist_workspace" => bytes("size").or(bytes("bytes")).unwrap_or(0),
            _ => 0,
        };
        let to = match event.op {
            "write" | "hydrate_workspace" => bytes("bytes").unwrap_or(0),
            _ => 0,
        };
        for (direction, bytes) in [("out", from), ("in", to)] {
            if bytes > 0 {
                let series = vec![("direction", direction.to_owned())];
                self.count("bastide.bytes", series, bytes);
            }
        }
        if event.op == "egress" {
            self.add_decision(event, &bytes);
        }
        if event.op == "exec" {
            self.count("bastide.cpu.time", Vec::new(), bytes("cpu_us").unwrap_or(0));
            for (direction, key) in [("read", "read_bytes"), ("write", "written_bytes")] {
                let series = vec![("direction", direction.to_owned())];
                self.count("bastide.io", series, bytes(key).unwrap_or(0));
            }
        }
        let durations = self.durations.entry(event.op.to_owned()).or_default();
        durations.add(finish.duration_ms / 1000.0);
    }

    /// Counts what a session's network decided, or a connection that ended.
    fn add_decision(&mut self, event: &Event, number: &impl Fn(&str) -> Option<u64>) {
        let word = |name: &str| {
            let word = event.data.get(name).and_then(serde_json::Value::as_str);
            word.unwrap_or_default().to_owned()
        };
        let decision = word("decision");
        if decision != "end" {
            // Equal ones within a second are one, with how many more there were.
            let many = number("count").unwrap_or(1);
            let series = vec![("decision", decision), ("why", word("why"))];
            return self.count("bastide.egress.decisions", series, many);
        }
        self.count("bastide.egress.flows", vec![("protocol", word("protocol"))], 1);
        for (direction, key) in [("out", "bytes_out"), ("in", "bytes_in")] {
            let series = vec![("direction", direction.to_owned())];
            self.count("bastide.egress.bytes", series, number(key).unwrap_or(0));
        }
    }

    fn count(&mut self, name: &'static str, series: Series, by: u64) {
        let is_known = self.counts.contains_key(&(name, series.clone()));
        if is_known || self.counts.len() < MOST {
            *self.counts.entry((name, series)).or_default() += by;
        }
    }

    /// The message with all of them.
    pub(super) fn message(&self) -> Vec<u8> {
        let time = now();
        let mut metrics = Vec::new();
        let mut names: Vec<_> = self.counts.keys().map(|(name, _)| *name).collect();
        names.dedup();
        for name in names {
            let points = self.counts.iter().filter(|((of, _), _)| *of == name);
            let points = points.map(|((_, series), count)| {
                let point = Message::default().fixed(2, self.since).fixed(3, time);
                let attributes = series.iter();
                let attributes =
                    attributes.map(|(key, value)| attribute(key, &Value::Text(value.clone())));
                point.fixed(6, *count).messages(7, attributes)
            });
            let sum = Message::default().messages(1, points).number(2, CUMULATIVE).number(3, 1);
            let unit = match name {
                "bastide.bytes" | "bastide.io" | "bastide.egress.bytes" => "By",
                "bastide.cpu.time" => "us",
                _ => "1",
            };
            metrics.push(Message::default().text(1, name).text(3, unit).message(7, sum));
        }
        let points = self.durations.iter().map(|(op, durations)| {
            let of = attribute("operation", &Value::Text(op.clone()));
            let point = Message::default().fixed(2, self.since).fixed(3, time);
            let point = point.fixed(4, durations.count).double(5, durations.sum);
            let point = point.packed(6, durations.classes);
            point.packed(7, BOUNDS.map(f64::to_bits)).message(9, of)
        });
        let histogram = Message::default().messages(1, points).number(2, CUMULATIVE);
        let durations = Message::default().text(1, "bastide.operation.duration").text(3, "s");
        metrics.push(durations.message(9, histogram));
        let scoped = Message::default().message(1, scope()).messages(2, metrics);
        let all = Message::default().message(1, resource()).message(2, scoped);
        Message::default().message(1, all).into_bytes()
    }
}

impl Durations {
    fn add(&mut self, seconds: f64) {
        self.count += 1;
        self.sum += seconds;
        let class = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use bastide_model::events::{Operation, OperationResult, Span};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn counts_decisions_flows_and_bytes_of_networks() {
        let mut metrics = Metrics::new();
        let notes = [
            json!({"decision": "deny", "why": "no_rule"}),
            json!({"decision": "deny", "why": "no_rule", "count": 4}),
            json!({"decision": "allow", "why": "rule"}),
            json!({"decision": "end", "why": "rule", "protocol": "tls", "bytes_out": 3, "bytes_in": 7}),
            json!({"decision": "end", "why": "rule", "protocol": "tls", "bytes_out": 1}),
        ];
        for note in notes {
            let data = note.as_object().cloned().unwrap_or_default();
            let operation = Operation::Extension { op: "egress", data };
            let stamp = (Uuid::nil(), bastide_model::events::EventTime::from_unix_micros(0));
            let span = Span::untraced(Uuid::nil());
            let done = Ok(OperationResult::Done);
            metrics.add(&operation.finish_event(Uuid::nil(), 0, &span, stamp, 0.0, done));
        }
        let count = |name: &'static str, series: &[(&'static str, &str)]| {
            let series = series.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
            metrics.counts.get(&(name, series)).copied()
        };
        let denied = [("decision", "deny"), ("why", "no_rule")];
        assert_eq!(count("bastide.egress.decisions", &denied), Some(5));
        let allowed = [("decision", "allow"), ("why", "rule")];
        assert_eq!(count("bastide.egress.decisions", &allowed), Some(1));
        assert_eq!(count("bastide.egress.flows", &[("protocol", "tls")]), Some(2));
        assert_eq!(count("bastide.egress.bytes", &[("direction", "out")]), Some(4));
        assert_eq!(count("bastide.egress.bytes", &[("direction", "in")]), Some(7));
    }
}
