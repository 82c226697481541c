//! Reading operations from what a model or a program sends.

use serde_json::{Map, Value};

use super::{PatchKind, PatchOperation};
use crate::error::raise;
use crate::error::{Error, ErrorClass, ErrorKind, Result};
use crate::python::{text, type_name};
use crate::text::{is_blank, trim};

const BEGIN_PATCH: &str = "*** Begin Patch";
const END_PATCH: &str = "*** End Patch";
const ADD_FILE: &str = "*** Add File: ";
const DELETE_FILE: &str = "*** Delete File: ";
const UPDATE_FILE: &str = "*** Update File: ";
const MOVE_TO: &str = "*** Move to: ";

/// Reads the input of the `apply_patch` tool: a patch text, or the same as JSON.
///
/// # Errors
/// `ValueError` with words for the model.
pub fn parse_tool_input(raw: &str) -> Result<Vec<PatchOperation>> {
    match raw.trim_start_matches(is_blank).starts_with(['{', '[']) {
        true => parse_json(raw),
        false => parse_text(raw),
    }
}

fn parse_json(raw: &str) -> Result<Vec<PatchOperation>> {
    let payload: Value = serde_json::from_str(raw).map_err(|error| {
        Error::new(ErrorKind::InvalidInput, error.to_string())
            .with_class(ErrorClass::JSONDecodeError)
    })?;
    match &payload {
        Value::Object(object) => match (object.get("operations"), object.get("operation")) {
            (Some(Value::Array(operations)), _) => operations.iter().map(json_operation).collect(),
            (_, None | Some(Value::Null)) => Ok(vec![json_operation(&payload)?]),
            (_, Some(operation)) => Ok(vec![json_operation(operation)?]),
        },
        Value::Array(operations) => operations.iter().map(json_operation).collect(),
        _ => Err(raise::value_error("apply_patch JSON input must be an object or array")),
    }
}

fn json_operation(value: &Value) -> Result<PatchOperation> {
    let refused = |message: String| Err(raise::value_error(message));
    let Value::Object(object) = value else {
        return refused("apply_patch operation must be an object".to_owned());
    };
    let Some(kind) = kind_of(object)? else {
        let given = text(object.get("type").unwrap_or(&Value::Null));
        return refused(format!("Invalid apply_patch operation type: {given}"));
    };
    let path = match object.get("path") {
        Some(Value::String(path)) if !path.is_empty() => path.clone(),
        _ => return refused("apply_patch operation is missing a path".to_owned()),
    };
    let diff = match (kind, object.get("diff")) {
        (PatchKind::DeleteFile, _) => None,
        (_, Some(Value::String(diff))) => Some(diff.clone()),
        _ => {
            let kind = kind.as_str();
            return refused(format!("apply_patch operation {kind} is missing a diff"));
        }
    };
    let move_to = match object.get("move_to") {
        None | Some(Value::Null) => None,
        Some(Value::String(path)) => Some(path.clone()),
        Some(_) => return refused("apply_patch operation move_to must be a string".to_owned()),
    };
    Ok(PatchOperation { kind, path, diff, move_to })
}

/// The kind an object names, if it is one. A list or an object cannot even be looked up.
fn kind_of(object: &Map<String, Value>) -> Result<Option<PatchKind>> {
    match object.get("type") {
        Some(Value::String(name)) => Ok(PatchKind::named(name)),
        Some(value @ (Value::Array(_) | Value::Object(_))) => {
            Err(raise::type_error(format!("unhashable type: '{}'", type_name(value))))
        }
        _ => Ok(None),
    }
}

/// Reads the operations a program hands over as JSON: one, or a list of them.
///
/// # Errors
/// `ApplyPatchDiffError` naming the type that is wrong.
pub fn coerce_operations(operations: &Value) -> Result<Vec<PatchOperation>> {
    match operations {
        Value::Object(operation) => Ok(vec![coerce_operation(operation)?]),
        Value::Array(operations) => operations
            .iter()
            .map(|operation| match operation {
                Value::Object(operation) => coerce_operation(operation),
                other => Err(wrong_type("operation", other)),
            })
            .collect(),
        other => {
            let given = type_name(other);
            let message = format!("Invalid apply_patch operations payload: {given}");
            Err(raise::apply_patch_diff(message))
        }
    }
}

fn coerce_operation(operation: &Map<String, Value>) -> Result<PatchOperation> {
    let field = |key: &str| operation.get(key).unwrap_or(&Value::Null);
    let Some(kind) = kind_of(operation)? else {
        return Err(wrong_type("operation", field("type")));
    };
    let Value::String(path) = field("path") else {
        return Err(wrong_type("path", field("path")));
    };
    let optional = |key: &str| match field(key) {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(wrong_type(key, other)),
    };
    let (diff, move_to) = (optional("diff")?, optional("move_to")?);
    Ok(PatchOperation { kind, path: path.clone(), diff, move_to })
}

fn wrong_type(what: &str, value: &Value) -> Error {
    raise::apply_patch_diff(format!("Invalid apply_patch {what} type: {}", type_name(value)))
}

fn parse_text(raw: &str) -> Result<Vec<PatchOperation>> {
    let refused = |message: &str| Err(raise::value_error(message));
    let mut lines: Vec<&str> = raw.split('\n').collect();
    if lines.last() == Some(&"") {
        lines.pop();
    }
    let lines: Vec<&str> =
        lines.into_iter().map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
    let (Some(&first), rest) = (lines.first(), lines.get(1..).unwrap_or_default()) else {
        return refused("apply_patch input must start with '*** Begin Patch'");
    };
    if first != BEGIN_PATCH {
        return refused("apply_patch input must start with '*** Begin Patch'");
    }
    let [body @ .., last] = rest else {
        return refused("apply_patch input must end with '*** End Patch'");
    };
    if *last != END_PATCH {
        return refused("apply_patch input must end with '*** End Patch'");
    }
    let mut operations = Vec::new();
    let mut body = body;
    while let Some((header, rest)) = body.split_first() {
        let lines = rest.iter().take_while(|line| !is_header(line)).count();
        let (lines, rest) = rest.split_at(lines);
        operations.push(section_operation(header, lines)?);
        body = rest;
    }
    if operations.is_empty() {
        return refused("apply_patch input must include at least one file operation");
    }
    Ok(operations)
}

fn is_header(line: &str) -> bool {
    [ADD_FILE, DELETE_FILE, UPDATE_FILE].iter().any(|header| line.starts_with(header))
}

fn section_operation(header: &str, lines: &[&str]) -> Result<PatchOperation> {
    let refused = |message: String| Err(raise::value_error(message));
    let operation = |kind, path: &str, diff, move_to| {
        Ok(PatchOperation { kind, path: path.to_owned(), diff, move_to })
    };
    if let Some(path) = header.strip_prefix(ADD_FILE) {
        let path = header_path(header, path)?;
        if let Some(line) = lines.iter().find(|line| !line.starts_with('+')) {
            return refused(format!("Invalid Add File line: {line}"));
        }
        if lines.is_empty() {
            return refused(format!("Add File patch for {path} must include at least one + line"));
        }
        return operation(PatchKind::CreateFile, path, Some(joined(lines)), None);
    }
    if let Some(path) = header.strip_prefix(DELETE_FILE) {
        let path = header_path(header, path)?;
        if !lines.is_empty() {
            return refused(format!("Delete File patch for {path} must not include a diff"));
        }
        return operation(PatchKind::DeleteFile, path, None, None);
    }
    let Some(path) = header.strip_prefix(UPDATE_FILE) else {
        return refused(format!("Invalid apply_patch file operation header: {header}"));
    };
    let path = header_path(header, path)?;
    let (move_to, lines) = match lines.split_first() {
        Some((first, rest)) if first.starts_with(MOVE_TO) => {
            (Some(header_path(first, &first[MOVE_TO.len()..])?.to_owned()), rest)
        }
        _ => (None, lines),
    };
    if lines.is_empty() {
        return refused(format!("Update File patch for {path} must include a hunk"));
    }
    operation(PatchKind::UpdateFile, path, Some(joined(lines)), move_to)
}

fn header_path<'a>(header: &str, path: &'a str) -> Result<&'a str> {
    match trim(path) {
        "" => Err(raise::value_error(format!("Missing path in apply_patch header: {header}"))),
        path => Ok(path),
    }
}

fn joined(lines: &[&str]) -> String {
    lines.join("\n") + "\n"
}
