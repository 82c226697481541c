//! Area `errors`: every error class.

use std::io;

use bastide_model::error::raise;
use bastide_model::error::{CLASSES, CODES, OPS, class_name, code_named, op_named};
use bastide_model::{Error, ErrorClass, Result};
use serde_json::{Map, Value, json};

use super::case::{decode_base64, encode_base64, malformed};
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("error_build", error_build),
    ("error_codes", error_codes),
    ("error_ops", error_ops),
    ("error_classes", error_classes),
];

fn error_codes(_: &Case<'_>) -> Result<Value> {
    Ok(CODES.iter().map(|code| (code.to_uppercase(), Value::from(*code))).collect())
}

fn error_ops(_: &Case<'_>) -> Result<Value> {
    Ok(json!(OPS))
}

fn error_classes(_: &Case<'_>) -> Result<Value> {
    let structured = CLASSES.iter().filter(|row| row.class.is_structured());
    Ok(structured.map(|row| (row.name, bases(row.class))).collect())
}

fn bases(class: ErrorClass) -> Value {
    class.bases().map(ErrorClass::name).collect()
}

fn error_build(case: &Case<'_>) -> Result<Value> {
    let class = case.text("class")?;
    let error = build(class, case.object("kwargs")?)?;
    let cause = std::error::Error::source(&error);
    let mut attrs = Map::new();
    let mut attr = |key: &str, value: Option<Value>| {
        value.map(|value| attrs.insert(key.to_owned(), value));
    };
    attr("command", error.command().map(|command| json!(command)));
    attr("exit_code", error.exit_code().map(Value::from));
    attr("stdout_b64", error.stdout().map(|bytes| encode_base64(bytes).into()));
    attr("stderr_b64", error.stderr().map(|bytes| encode_base64(bytes).into()));
    attr("session_id", error.session_id().map(Value::from));
    if class == "ExecTimeoutError" {
        // Fields hold what was given; the typed one does not tell `2` from `2.0`.
        let given = case.object("kwargs")?["timeout_s"].clone();
        attr("timeout_s", (given.as_f64() == error.timeout_s()).then_some(given));
    }
    let base_names = ErrorClass::named(class).map_or(Value::Null, bases);
    Ok(json!({
        "type": error.class(),
        "error_code": error.error_code(),
        "code": error.code(),
        "op": error.op(),
        "message": error.message(),
        "str": error.to_string(),
        "context": error.context(),
        "retryable": error.is_retryable(),
        "cause_type": cause.map(class_name),
        "bases": base_names,
        "attrs": attrs,
    }))
}

pub(crate) fn build(class: &str, kwargs: &Map<String, Value>) -> Result<Error> {
    let text = |key: &str| kwargs.get(key).and_then(Value::as_str).unwrap_or_default();
    let optional = |key: &str| kwargs.get(key).and_then(Value::as_str);
    let number = |key: &str| kwargs.get(key).and_then(Value::as_i64).unwrap_or_default();
    let texts = |key: &str| -> Vec<&str> {
        let items = kwargs.get(key).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let retryable = kwargs.get("retryable").map(Value::as_bool);
    let class = ErrorClass::named(class).ok_or_else(|| malformed("class", "a known class"))?;
    let mut error = match class {
        ErrorClass::InvalidManifestPathError => {
            raise::invalid_manifest_path(text("rel"), text("reason"))
        }
        ErrorClass::InvalidCompressionSchemeError => {
            raise::invalid_compression_scheme(text("path"), optional("scheme"))
        }
        ErrorClass::ExposedPortUnavailableError => {
            let ports = kwargs.get("exposed_ports").and_then(Value::as_array);
            let ports = ports.into_iter().flatten().filter_map(Value::as_i64);
            let retryable = retryable.flatten();
            raise::exposed_port_unavailable(number("port"), ports, text("reason"), retryable)
        }
        ErrorClass::ExecFailureError => {
            let code = code_named(text("error_code"));
            let code = code.ok_or_else(|| malformed("error_code", "a known code"))?;
            raise::exec_failure(text("message"), code, texts("command"))
        }
        ErrorClass::ExecNonZeroError => {
            let result = kwargs.get("exec_result").unwrap_or(&Value::Null);
            let stream = |key: &str| match result[key.trim_end_matches("_b64")].as_str() {
                Some(text) => Ok(text.as_bytes().to_vec()),
                None => decode_base64(result[key].as_str().unwrap_or_default()),
            };
            let code = result["exit_code"].as_i64().unwrap_or_default();
            let (stdout, stderr) = (stream("stdout_b64")?, stream("stderr_b64")?);
            raise::exec_nonzero(texts("command"), code, stdout, stderr)
        }
        ErrorClass::ExecTimeoutError => {
            let timeout = kwargs.get("timeout_s").and_then(Value::as_number);
            raise::exec_timeout(texts("command"), timeout.cloned())
        }
        ErrorClass::ExecTransportError => raise::exec_transport(texts("command")),
        ErrorClass::PtySessionNotFoundError => raise::pty_session_not_found(number("session_id")),
        ErrorClass::ApplyPatchPathError => raise::apply_patch_path(text("path"), text("reason")),
        ErrorClass::ApplyPatchDiffError => raise::apply_patch_diff(text("message")),
        ErrorClass::ApplyPatchFileNotFoundError => raise::apply_patch_file_not_found(text("path")),
        ErrorClass::ApplyPatchDecodeError => raise::apply_patch_decode(text("path")),
        ErrorClass::WorkspaceReadNotFoundError => raise::workspace_read_not_found(text("path")),
        ErrorClass::WorkspaceArchiveReadError => raise::workspace_archive_read(text("path")),
        ErrorClass::WorkspaceArchiveWriteError => raise::workspace_archive_write(text("path")),
        ErrorClass::WorkspaceWriteTypeError => {
            raise::workspace_write_type(text("path"), text("actual_type"))
        }
        ErrorClass::WorkspaceStopError => raise::workspace_stop(text("path")),
        ErrorClass::WorkspaceStartError => raise::workspace_start(text("path")),
        ErrorClass::WorkspaceRootNotFoundError => raise::workspace_root_not_found(text("path")),
        ErrorClass::LocalFileReadError => raise::local_file_read(text("src")),
        ErrorClass::LocalDirReadError => raise::local_dir_read(text("src")),
        ErrorClass::LocalChecksumError => raise::local_checksum(text("src")),
        ErrorClass::GitMissingInImageError => raise::git_missing_in_image(),
        ErrorClass::GitCloneError => raise::git_clone(text("url"), text("ref"), optional("stderr")),
        ErrorClass::GitSubpathError => {
            raise::git_subpath(text("repo"), text("subpath"), text("reason"))
        }
        ErrorClass::GitCopyError => {
            raise::git_copy(text("src_root"), text("dest"), optional("stderr"))
        }
        ErrorClass::MountToolMissingError => raise::mount_tool_missing(text("tool")),
        ErrorClass::MountConfigError => raise::mount_config(text("message")),
        ErrorClass::MountCommandError => raise::mount_command(text("command"), optional("stderr")),
        ErrorClass::SkillsConfigError => raise::skills_config(text("message")),
        ErrorClass::SnapshotPersistError => {
            raise::snapshot_persist(text("snapshot_id"), text("path"))
        }
        ErrorClass::SnapshotRestoreError => {
            raise::snapshot_restore(text("snapshot_id"), text("path"))
        }
        ErrorClass::SnapshotNotRestorableError => {
            raise::snapshot_not_restorable(text("snapshot_id"), text("path"))
        }
        ErrorClass::SandboxError
        | ErrorClass::ConfigurationError
        | ErrorClass::SandboxRuntimeError
        | ErrorClass::ArtifactError
        | ErrorClass::SnapshotError
        | ErrorClass::ApplyPatchError
        | ErrorClass::WorkspaceIOError
        | ErrorClass::LocalArtifactError
        | ErrorClass::GitArtifactError
        | ErrorClass::MountArtifactError => {
            let code = code_named(text("error_code"));
            let op = op_named(text("op"));
            Error::of(class, Map::new())
                .with_message(text("message"))
                .with_code(code.ok_or_else(|| malformed("error_code", "a known code"))?)
                .with_op(op.ok_or_else(|| malformed("op", "a known operation"))?)
        }
        plain => Error::of(plain, Map::new()).with_message(text("message")),
    };
    if let Some(context) = kwargs.get("context").and_then(Value::as_object) {
        error = error.with_contexts(context.clone());
    }
    // The raiser's choice of words and of retryability, where a class leaves it one.
    match (class, optional("message")) {
        (ErrorClass::WorkspaceArchiveWriteError, Some(message)) => {
            error = error.with_message(message);
        }
        (ErrorClass::ExecTransportError | ErrorClass::WorkspaceStartError, Some(message))
            if !message.is_empty() =>
        {
            error = error.with_message(message);
        }
        (ErrorClass::ApplyPatchDiffError, _) => {
            if let Some(path) = optional("path") {
                error = error.with_context("path", path);
            }
        }
        _ => {}
    }
    if let Some(retryable) = retryable
        && class != ErrorClass::ExposedPortUnavailableError
    {
        error = error.with_retryable(retryable);
    }
    match kwargs.get("cause") {
        Some(cause) if !cause.is_null() => caused(error, cause),
        _ => Ok(error),
    }
}

fn caused(error: Error, cause: &Value) -> Result<Error> {
    let class = cause["class"].as_str().unwrap_or_default();
    let empty = Map::new();
    let kwargs = cause["kwargs"].as_object().unwrap_or(&empty);
    match class {
        "TimeoutError" => Ok(error.with_source(io::Error::from(io::ErrorKind::TimedOut))),
        "OSError" => {
            let number = cause["args"][0].as_i64().and_then(|number| i32::try_from(number).ok());
            Ok(error.with_source(io::Error::from_raw_os_error(number.unwrap_or_default())))
        }
        _ => Ok(error.with_source(build(class, kwargs)?)),
    }
}
