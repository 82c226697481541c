//! What is wrong with a file, in words for the person who wrote it.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::Document;
use crate::lax::{Invalid, PathSegment};
use crate::{Error, ErrorClass, ErrorKind, FieldError};

/// More than these are not listed: nobody reads them, and the first explain the rest.
const MAX_LISTED: usize = 20;

/// Everything that is wrong with a file.
pub(super) struct DocumentErrors<'d, 't> {
    document: &'d Document<'t>,
    lines: Vec<Line>,
    /// The error that stands behind it, if there is one.
    error: Option<Error>,
}

struct Line {
    /// Where to point.
    path: Vec<PathSegment>,
    /// How much of the path is said.
    spoken: usize,
    message: String,
}

impl Line {
    fn at(path: Vec<PathSegment>, message: String) -> Self {
        Self { spoken: path.len(), path, message }
    }
}

impl<'d, 't> DocumentErrors<'d, 't> {
    pub(super) fn about(document: &'d Document<'t>, invalid: Invalid) -> Self {
        match invalid {
            Invalid::Fields(errors) => {
                let lines = errors.into_iter().map(|error| line_of(document, error)).collect();
                Self { document, lines, error: None }
            }
            Invalid::Refused { path, message } => {
                Self { document, lines: vec![Line::at(path, message)], error: None }
            }
            Invalid::Raised { path, error } => Self::raised(document, &path, error),
        }
    }

    pub(super) fn raised(document: &'d Document<'t>, path: &[PathSegment], error: Error) -> Self {
        let message = error.message().to_owned();
        Self { document, lines: vec![Line::at(path.to_vec(), message)], error: Some(error) }
    }

    pub(super) fn into_error(self) -> Error {
        let name = self.document.name;
        let mut seen = HashSet::new();
        let mut lines: Vec<&Line> =
            self.lines.iter().filter(|line| seen.insert((&line.path, &line.message))).collect();
        let more = lines.len().saturating_sub(MAX_LISTED);
        lines.truncate(MAX_LISTED);
        let mut located: Vec<_> =
            lines.into_iter().map(|line| (self.document.locate(&line.path), line)).collect();
        located.sort_by_key(|(position, _)| *position);
        let mut texts = Vec::new();
        let mut listed = Vec::new();
        for ((row, column), line) in located {
            let path = shown_path(&line.path[..line.spoken]);
            texts.push(placed(name, (row, column), &path, &line.message));
            listed.push(json!({
                "file": name,
                "line": row,
                "column": column,
                "path": path,
                "message": line.message,
            }));
        }
        if more > 0 {
            texts.push(format!("{name}: and {more} more"));
        }
        let error = self.error.unwrap_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "").with_class(ErrorClass::ValidationError)
        });
        error.with_message(texts.join("\n")).with_context("errors", listed)
    }
}

/// One line about something that is not an error.
pub(super) fn line(document: &Document<'_>, path: &[PathSegment], message: &str) -> String {
    placed(document.name, document.locate(path), &shown_path(path), message)
}

fn placed(name: &str, (row, column): (usize, usize), path: &str, message: &str) -> String {
    let colon = if path.is_empty() { "" } else { ": " };
    format!("{name}:{row}:{column}: {path}{colon}{message}")
}

/// The steps with dots between them; a key that could be mistaken is in quotes.
fn shown_path(path: &[PathSegment]) -> String {
    let plain = |key: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        !key.is_empty() && key.bytes().all(plain)
    };
    let step = |step: &PathSegment| match step {
        PathSegment::Key(key) if !plain(key) => format!("{key:?}"),
        step => step.to_string(),
    };
    path.iter().map(step).collect::<Vec<_>>().join(".")
}

/// Says a field error in words for people: a missing key and an unknown one belong to the thing
/// around them, and the reference's words are a programmer's.
fn line_of(document: &Document<'_>, error: FieldError) -> Line {
    let FieldError { mut path, tag, message, .. } = error;
    let found = found_at(document.value(), &path);
    let message = match tag.as_str() {
        "missing" => {
            let name = path.pop().map(|step| step.to_string()).unwrap_or_default();
            format!("`{name}` is missing")
        }
        "unknown_key" => {
            // Points at the key, speaks of what has it.
            return Line { spoken: path.len().saturating_sub(1), path, message };
        }
        "union_tag_not_found" => "`type` is missing".to_owned(),
        "model_type" | "dataclass_type" | "dict_type" | "model_attributes_type" => {
            format!("expected a map, found {}", shown(found))
        }
        "list_type" | "tuple_type" => format!("expected a list, found {}", shown(found)),
        "string_type" | "bytes_type" | "path_type" => match found {
            Some(Value::Number(_) | Value::Bool(_)) => {
                format!("expected text, found {}; put it in quotes", shown(found))
            }
            _ => format!("expected text, found {}", shown(found)),
        },
        "bool_type" | "bool_parsing" => format!("expected true or false, found {}", shown(found)),
        "int_type" | "int_parsing" | "int_from_float" => {
            format!("expected a whole number, found {}", shown(found))
        }
        _ => match message.strip_prefix("Value error, ") {
            Some(rule) => rule.to_owned(),
            None => message.replacen("Input should be", "expected", 1),
        },
    };
    Line::at(path, message)
}

fn found_at<'v>(value: &'v Value, path: &[PathSegment]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        PathSegment::Key(key) => value.get(key),
        PathSegment::Index(index) => value.get(index),
    })
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::Bool(flag)) => format!("`{flag}`"),
        Some(Value::Number(number)) => format!("the number {number}"),
        Some(Value::String(_)) => "text".to_owned(),
        Some(Value::Array(_)) => "a list".to_owned(),
        Some(Value::Object(_)) => "a map".to_owned(),
    }
}
