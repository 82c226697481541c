//! When two answers count as the same.
//!
//! Values compare by deep equality: objects unordered, lists ordered, whole numbers exactly and
//! apart from fractions. Errors compare by what their kind promises: an error of the reference's
//! own hierarchy in every field, a validation error by the set of places it complains about, an
//! error whose words are the Python library's only by being an error. The same rules hold for
//! errors that functions put into their output.

use std::collections::BTreeSet;

use bastide_model::{Error, ErrorClass};
use serde_json::{Map, Number, Value, json};

/// The error as cases hold it.
pub(crate) fn error_object(error: &Error) -> Value {
    let mut object = Map::new();
    object
        .insert("type".to_owned(), error.class().map(ErrorClass::name).unwrap_or_default().into());
    if let Some(code) = error.error_code() {
        object.insert("code".to_owned(), code.into());
    }
    object.insert("message".to_owned(), error.message().into());
    object.insert("context".to_owned(), Value::Object(error.context().clone()));
    Value::Object(object)
}

/// Where and how `got` differs from `expected`, or `None`.
pub(crate) fn difference(function: &str, expected: &Value, got: &Value) -> Option<String> {
    Comparison { function }.values("", expected, got)
}

/// Where and how the error `got` differs from `expected`, or `None`.
pub(crate) fn error_difference(function: &str, expected: &Value, got: &Value) -> Option<String> {
    Comparison { function }.errors("", expected, got)
}

/// What of an error is compared.
enum Strictness {
    /// Only that it is an error.
    Fails,
    /// Its class and the places it complains about.
    Places,
    /// Its class and message.
    Message,
    /// Every field.
    Everything,
    /// Every field but the operating system's words for it.
    ButOsText,
}

/// Error classes whose words are the Python library's.
pub(crate) const PYTHON_WORDING: &[&str] = &[
    "JSONDecodeError",
    "UnicodeDecodeError",
    "UnicodeEncodeError",
    "OSError",
    "EOFError",
    "BadZipFile",
    "CompressionError",
    "LZMAError",
    "StreamError",
    "BlockingIOError",
    "BrokenPipeError",
    "ChildProcessError",
    "ConnectionError",
    "FileExistsError",
    "FileNotFoundError",
    "InterruptedError",
    "IsADirectoryError",
    "NotADirectoryError",
    "PermissionError",
    "ProcessLookupError",
    "TimeoutError",
    "PydanticSerializationError",
    "ReadError",
    "IndexError",
    "NotImplementedError",
];

impl Strictness {
    fn of(function: &str, expected: &Value) -> Self {
        let class = expected["type"].as_str().unwrap_or_default();
        let message = expected["message"].as_str().unwrap_or_default();
        let names_a_constructor = class == "TypeError" && message.contains("__init__()");
        let is_of_zipfile = class == "RuntimeError" && message.contains("password required");
        if PYTHON_WORDING.contains(&class) || names_a_constructor || is_of_zipfile {
            return Self::Fails;
        }
        match class {
            "ValidationError" => Self::Places,
            "ValueError" | "TypeError" | "RuntimeError" => Self::Message,
            "ExecNonZeroError" if function.starts_with("unix_local_op") => Self::ButOsText,
            _ => Self::Everything,
        }
    }
}

struct Comparison<'a> {
    function: &'a str,
}

impl Comparison<'_> {
    fn values(&self, at: &str, expected: &Value, got: &Value) -> Option<String> {
        if is_error_object(expected) {
            return match is_error_object(got) {
                true => self.errors(at, expected, got),
                false => Some(format!("{at}: expected an error")),
            };
        }
        match (expected, got) {
            (Value::Object(expected), Value::Object(got)) => self.objects(at, expected, got),
            (Value::Array(expected), Value::Array(got)) => {
                if expected.len() != got.len() {
                    return Some(format!("{at}: {} items, got {}", expected.len(), got.len()));
                }
                let pairs = expected.iter().zip(got).enumerate();
                pairs.into_iter().find_map(|(index, (expected, got))| {
                    self.values(&format!("{at}/{index}"), expected, got)
                })
            }
            (Value::Number(expected), Value::Number(got)) if same_number(expected, got) => None,
            _ if expected == got => None,
            _ => Some(format!("{at}: expected {}, got {}", short(expected), short(got))),
        }
    }

    fn objects(
        &self,
        at: &str,
        expected: &Map<String, Value>,
        got: &Map<String, Value>,
    ) -> Option<String> {
        if let Some(extra) = got.keys().find(|key| !expected.contains_key(*key)) {
            return Some(format!("{at}: unexpected `{extra}`"));
        }
        expected.iter().find_map(|(key, expected)| match got.get(key) {
            Some(got) => self.values(&format!("{at}/{key}"), expected, got),
            None => Some(format!("{at}: `{key}` is missing")),
        })
    }

    fn errors(&self, at: &str, expected: &Value, got: &Value) -> Option<String> {
        let fields = |names: &[&str]| {
            names.iter().find_map(|name| {
                let (expected, got) = (&expected[*name], &got[*name]);
                self.values(&format!("{at}/{name}"), expected, got)
            })
        };
        match Strictness::of(self.function, expected) {
            Strictness::Fails => None,
            Strictness::Places => fields(&["type"]).or_else(|| {
                let (expected, got) = (places(expected), places(got));
                (expected != got).then(|| format!("{at}: places {expected:?}, got {got:?}"))
            }),
            Strictness::Message => fields(&["type", "message"]),
            Strictness::Everything => fields(&["type", "code", "message", "context"]),
            Strictness::ButOsText => fields(&["type", "code"]).or_else(|| {
                let (expected, got) = (without_os_text(expected), without_os_text(got));
                self.values(&format!("{at}/context"), &expected, &got)
            }),
        }
    }
}

fn is_error_object(value: &Value) -> bool {
    let Some(object) = value.as_object() else { return false };
    let fields = ["type", "message", "context"];
    fields.iter().all(|field| object.contains_key(*field))
        && object.keys().all(|key| key == "code" || fields.contains(&key.as_str()))
}

/// The places a validation error complains about, each as JSON text.
fn places(error: &Value) -> BTreeSet<String> {
    let errors = error["context"]["errors"].as_array();
    errors.into_iter().flatten().map(|entry| entry["loc"].to_string()).collect()
}

fn without_os_text(error: &Value) -> Value {
    let mut context = error["context"].clone();
    if let Some(stderr) = context.get_mut("stderr") {
        *stderr = json!("");
    }
    context
}

/// Whole numbers of any size compare by their digits, fractions by their value.
fn same_number(expected: &Number, got: &Number) -> bool {
    let whole = |number: &str| !number.contains(['.', 'e', 'E']);
    let (expected, got) = (expected.to_string(), got.to_string());
    if whole(&expected) || whole(&got) {
        return expected == got;
    }
    matches!((expected.parse::<f64>(), got.parse::<f64>()), (Ok(a), Ok(b)) if a == b)
}

fn short(value: &Value) -> String {
    const LIMIT: usize = 160;
    let text = value.to_string();
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(expected: &Value, got: &Value) -> bool {
        difference("f", expected, got).is_none()
    }

    #[test]
    fn compares_objects_unordered_and_lists_ordered() {
        assert!(same(&json!({"a": 1, "b": [1, 2]}), &json!({"b": [1, 2], "a": 1})));
        assert!(!same(&json!([1, 2]), &json!([2, 1])));
        assert!(!same(&json!({"a": null}), &json!({})));
    }

    #[test]
    fn tells_whole_numbers_from_fractions_and_compares_both_by_value() {
        let number = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert!(same(&number("1e2"), &number("100.0")));
        assert!(!same(&number("1"), &number("1.0")));
        assert!(!same(&number("18446744073709551617"), &number("18446744073709551618")));
    }

    #[test]
    fn compares_errors_as_strictly_as_their_class_promises() {
        let error = |class: &str, message: &str, context: Value| json!({"type": class, "message": message, "context": context});
        let os = error("FileExistsError", "[Errno 17] File exists", json!({}));
        assert!(same(&json!({ "e": os }), &json!({"e": error("", "it is there", json!({}))})));
        assert!(!same(&json!({ "e": os }), &json!({"e": null})));

        let sdk = error("ValueError", "depth must be positive", json!({}));
        assert!(same(&sdk, &error("ValueError", "depth must be positive", json!({"more": 1}))));
        assert!(!same(&sdk, &error("ValueError", "bad depth", json!({}))));

        let places =
            |tag: &str, loc: Value| json!({"errors": [{"loc": loc, "type": tag, "msg": tag}]});
        let invalid = error("ValidationError", "a: missing", places("missing", json!(["a"])));
        assert!(same(&invalid, &error("ValidationError", "?", places("gone", json!(["a"])))));
        assert!(!same(&invalid, &error("ValidationError", "?", places("gone", json!(["b"])))));
    }
}
