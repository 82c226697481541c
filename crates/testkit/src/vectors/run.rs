//! Runs every case of a folder.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bastide::Backend;
use bastide_model::Result;
use serde_json::{Map, Value, json};

use super::case::{PLACEHOLDER, decode_base64, encode_base64};
use super::class::may_wait;
use super::compare::{difference, error_difference, error_object};
use super::differences::{Difference, matching};
use super::line::{Expected, Line};
use super::projection::projection_of;
use super::{AREAS, Case, Class, Handler, Outcome, Report, Scratch, Status};

/// The folder of cases this project carries.
#[must_use]
pub fn default_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/vectors")
}

/// Runs the cases of every `*.jsonl` file in `dir`. Those that need a session have one on `backend`,
/// and wait without one.
///
/// # Errors
/// The folder or a file in it cannot be read. A line that cannot be read is a failed case instead.
pub fn run(dir: &Path, backend: Option<&Arc<dyn Backend>>) -> io::Result<Report> {
    let handlers: HashMap<_, _> = AREAS.iter().copied().flatten().copied().collect();
    let runner = Runner { handlers, backend };
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    let mut outcomes = Vec::new();
    for file in files {
        let area = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = fs::read(&file)?;
        let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if bytes.is_empty() {
            continue;
        }
        for (index, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            outcomes.push(runner.run_line(&area, index + 1, line));
        }
    }
    Ok(Report::new(outcomes))
}

/// What every case is run with.
struct Runner<'a> {
    handlers: HashMap<&'a str, Handler>,
    backend: Option<&'a Arc<dyn Backend>>,
}

impl Runner<'_> {
    fn run_line(&self, area: &str, number: usize, line: &[u8]) -> Outcome {
        let line = match Line::parse(line) {
            Ok(line) => line,
            Err(reason) => {
                let status = Status::Failed {
                    reason: format!("unreadable line: {reason}"),
                    expected: Value::Null,
                    got: Value::Null,
                };
                let (id, function) = (format!("{area}:{number}"), String::new());
                return Outcome {
                    area: area.to_owned(),
                    id,
                    function,
                    class: Class::Contract,
                    status,
                };
            }
        };
        let class = Class::of(&line.function);
        let status = match (class, self.handlers.get(line.function.as_str())) {
            (Class::Mechanism, _) => Status::Mechanism,
            (Class::Wording, _) => Status::Wording,
            (_, Some(_)) if may_wait(&line.function) && self.backend.is_none() => Status::NotYet,
            (_, Some(handler)) => self.run_case(*handler, &line),
            (_, None) if may_wait(&line.function) => Status::NotYet,
            (_, None) => Status::Failed {
                reason: format!("no handler for `{}`", line.function),
                expected: answer_of(&line.expected),
                got: Value::Null,
            },
        };
        Outcome { area: area.to_owned(), id: line.id, function: line.function, class, status }
    }

    fn run_case(&self, handler: Handler, line: &Line) -> Status {
        let scratch = Scratch::default();
        let got = self.answer(handler, line, &scratch);
        let reason = match (&line.expected, &got) {
            (_, Actual::Panicked(message)) => Some(format!("panicked: {message}")),
            (Expected::Output(expected), Actual::Output(got)) => {
                match projection_of(&line.function) {
                    Some(project) => difference(&line.function, &project(expected), &project(got)),
                    None => difference(&line.function, expected, got),
                }
            }
            (Expected::Error(expected), Actual::Error(got)) => {
                match projection_of(&line.function) {
                    Some(project) => {
                        error_difference(&line.function, &project(expected), &project(got))
                    }
                    None => error_difference(&line.function, expected, got),
                }
            }
            (Expected::Output(_), Actual::Error(_)) => {
                Some("expected an output, got an error".to_owned())
            }
            (Expected::Error(_), Actual::Output(_)) => {
                Some("expected an error, got an output".to_owned())
            }
        };
        let rule = matching(&line.function, &line.input);
        verdict(reason, rule, answer_of(&line.expected), got)
    }

    fn answer(&self, handler: Handler, line: &Line, scratch: &Scratch) -> Actual {
        // A handler that panics loses its case, not the run.
        let call = AssertUnwindSafe(|| -> Result<Value> {
            let input = match line.input.to_string().contains(PLACEHOLDER) {
                true => substitute(&line.input, PLACEHOLDER, &scratch.path()?.to_string_lossy()),
                false => line.input.clone(),
            };
            handler(&Case { input: &input, scratch, backend: self.backend })
        });
        let got = match catch_unwind(call) {
            Ok(Ok(output)) => Actual::Output(output),
            Ok(Err(error)) => Actual::Error(error_object(&error)),
            Err(panic) => {
                let message = panic.downcast_ref::<String>().map(String::as_str);
                let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
                return Actual::Panicked(message.unwrap_or("no message").to_owned());
            }
        };
        let Some(path) = scratch.made() else { return got };
        let path = path.to_string_lossy();
        // Only live processes print the folder into bytes.
        let is_live = line.function.starts_with("unix_local_");
        let put_back = |value: Value| {
            let value = substitute(&value, &path, PLACEHOLDER);
            if is_live { substitute_in_bytes(value, &path) } else { value }
        };
        match got {
            Actual::Output(value) => Actual::Output(put_back(value)),
            Actual::Error(value) => Actual::Error(put_back(value)),
            panicked @ Actual::Panicked(_) => panicked,
        }
    }
}

/// Weighs a difference, or its absence, against the rule about the case.
fn verdict(
    reason: Option<String>,
    rule: Option<&Difference>,
    expected: Value,
    got: Actual,
) -> Status {
    let failed = |reason: String, got: Actual| Status::Failed { reason, expected, got: got.show() };
    match (reason, rule) {
        (None, None) => Status::Passed,
        (Some(reason), None) => failed(reason, got),
        (None, Some(rule)) => {
            failed(format!("rule `{}` covers it, but both answer alike", rule.name), got)
        }
        (Some(reason), Some(rule)) => match &got {
            Actual::Output(answer) | Actual::Error(answer) if (rule.holds)(answer) => {
                Status::Known { rule: rule.name }
            }
            _ => failed(format!("not what rule `{}` promises; {reason}", rule.name), got),
        },
    }
}

/// What our side answered, with the scratch folder spelled as in the cases.
enum Actual {
    Output(Value),
    Error(Value),
    Panicked(String),
}

impl Actual {
    fn show(self) -> Value {
        match self {
            Self::Output(value) => json!({ "output": value }),
            Self::Error(value) => json!({ "error": value }),
            Self::Panicked(message) => json!({ "panic": message }),
        }
    }
}

fn answer_of(expected: &Expected) -> Value {
    match expected {
        Expected::Output(value) => json!({ "output": value }),
        Expected::Error(value) => json!({ "error": value }),
    }
}

/// Replaces `from` by `to` in every text and key.
fn substitute(value: &Value, from: &str, to: &str) -> Value {
    match value {
        Value::String(text) => text.replace(from, to).into(),
        Value::Array(items) => items.iter().map(|item| substitute(item, from, to)).collect(),
        Value::Object(object) => {
            let pairs = object.iter();
            let pairs =
                pairs.map(|(key, value)| (key.replace(from, to), substitute(value, from, to)));
            Value::Object(pairs.collect())
        }
        _ => value.clone(),
    }
}

/// Puts the placeholder back into what a process printed.
fn substitute_in_bytes(value: Value, path: &str) -> Value {
    const PRINTED: &[&str] = &["stdout_b64", "stderr_b64", "output_b64"];
    match value {
        Value::Array(items) => {
            items.into_iter().map(|item| substitute_in_bytes(item, path)).collect()
        }
        Value::Object(object) => {
            let mut replaced = Map::new();
            for (key, value) in object {
                let bytes = match &value {
                    Value::String(text) if PRINTED.contains(&key.as_str()) => {
                        decode_base64(text).ok()
                    }
                    _ => None,
                };
                let value = match bytes {
                    Some(bytes) => encode_base64(&replace_bytes(&bytes, path.as_bytes())).into(),
                    None => substitute_in_bytes(value, path),
                };
                replaced.insert(key, value);
            }
            Value::Object(replaced)
        }
        other => other,
    }
}

fn replace_bytes(bytes: &[u8], path: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        match rest.strip_prefix(path) {
            Some(tail) => {
                replaced.extend_from_slice(PLACEHOLDER.as_bytes());
                rest = tail;
            }
            None => {
                replaced.push(*first);
                rest = tail;
            }
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn runner() -> Runner<'static> {
        Runner { handlers: HashMap::new(), backend: None }
    }

    fn line(function: &str, input: Value, expected: Expected) -> Line {
        Line { id: "a/1".to_owned(), function: function.to_owned(), input, expected }
    }

    fn echo(case: &Case<'_>) -> Result<Value> {
        Ok(
            json!({"path": case.get("path"), "output_b64": encode_base64(case.text("path")?.as_bytes())}),
        )
    }

    #[test]
    fn puts_the_scratch_folder_in_and_takes_it_out_again() {
        let encoded = encode_base64(b"<TMP>/ws");
        let expected = json!({"path": "<TMP>/ws", "output_b64": encoded});
        let case = line("unix_local_pty", json!({"path": "<TMP>/ws"}), Expected::Output(expected));
        assert!(matches!(runner().run_case(echo, &case), Status::Passed));
    }

    #[test]
    fn a_panic_fails_its_case_only() {
        fn panics(_: &Case<'_>) -> Result<Value> {
            panic!("oh no")
        }
        let case = line("f", json!({}), Expected::Output(Value::Null));
        let Status::Failed { reason, .. } = runner().run_case(panics, &case) else {
            panic!("passed")
        };
        assert_eq!(reason, "panicked: oh no");
    }

    #[test]
    fn unknown_functions_fail_and_unreadable_lines_fail() {
        let text = br#"{"id":"a/1","fn":"nobody_knows","input":{},"output":null}"#;
        for line in [&text[..], b"{", b""] {
            let outcome = runner().run_line("a", 1, line);
            assert!(matches!(outcome.status, Status::Failed { .. }));
        }
    }

    #[test]
    fn a_rule_must_match_only_where_we_differ_and_keep_its_promise() {
        let rule = Difference {
            name: "r",
            functions: &["f"],
            applies: |_| true,
            holds: |answer| answer == "ours",
            reference: "",
            ours: "",
            why: "",
        };
        let weigh = |reason: Option<&str>, got: &str| {
            verdict(reason.map(str::to_owned), Some(&rule), Value::Null, Actual::Output(json!(got)))
        };
        assert!(matches!(weigh(Some("differs"), "ours"), Status::Known { rule: "r" }));
        assert!(matches!(weigh(Some("differs"), "neither"), Status::Failed { .. }));
        assert!(matches!(weigh(None, "theirs"), Status::Failed { .. }));
    }

    #[test]
    fn every_function_has_one_handler() {
        let mut seen = BTreeSet::new();
        for (function, _) in AREAS.iter().copied().flatten() {
            assert!(seen.insert(*function), "{function} has two handlers");
        }
    }

    /// Until every area is here, only functions that have a handler must pass.
    #[test]
    fn the_cases_of_this_project_pass() {
        let report = run(&default_dir(), None).unwrap();
        let registered: BTreeSet<_> =
            AREAS.iter().copied().flatten().map(|(name, _)| *name).collect();
        let failures =
            report.failures().filter(|outcome| registered.contains(outcome.function.as_str()));
        let failures: Vec<_> = failures.map(|outcome| &outcome.id).collect();
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(report.known_is_within_bounds());
    }
}
