//! Constructors of the reference's errors, one for each class that somebody raises.
//!
//! Each fills in the context that the class always has; a raiser adds more with
//! [`Error::with_context`] and [`Error::with_contexts`], whose keys win over the standard ones.

use std::fmt::Display;

use serde_json::{Map, Number, Value};

use super::{Detail, Error, ErrorClass};

/// A context of these keys, in this order.
fn pairs<const N: usize>(values: [(&str, Value); N]) -> Map<String, Value> {
    values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl Error {
    /// Makes an error of a class with the words of the table, filled in from `context`.
    pub fn of(class: ErrorClass, context: Map<String, Value>) -> Self {
        let row = class.row();
        let mut error = Self::new(row.kind, row.message_for(&context)).with_class(class);
        error.data.code = row.code;
        error.data.op = row.op;
        error.data.retryable = row.retryable;
        error.data.context = context;
        error
    }

    /// Replaces the words.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.data.message = message.into();
        self
    }
}

fn of_path(class: ErrorClass, key: &str, path: impl Display) -> Error {
    Error::of(class, pairs([(key, path.to_string().into())]))
}

/// A plain mistake of the caller: the right type, a wrong value.
#[must_use]
pub fn value_error(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::ValueError, Map::new()).with_message(message)
}

/// A plain mistake of the caller: a wrong type.
#[must_use]
pub fn type_error(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::TypeError, Map::new()).with_message(message)
}

/// A plain failure that has no class of its own.
#[must_use]
pub fn runtime_error(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::RuntimeError, Map::new()).with_message(message)
}

/// A path of a manifest is absolute (`absolute`) or leaves the workspace (`escape_root`).
#[must_use]
pub fn invalid_manifest_path(rel: impl Display, reason: &str) -> Error {
    let rel = rel.to_string();
    let absolute = format!("manifest path must be relative: {rel}");
    let context = pairs([("rel", rel.into()), ("reason", reason.into())]);
    let error = Error::of(ErrorClass::InvalidManifestPathError, context);
    if reason == "absolute" { error.with_message(absolute) } else { error }
}

/// An archive's kind is unknown, or not one we unpack.
#[must_use]
pub fn invalid_compression_scheme(path: impl Display, scheme: Option<&str>) -> Error {
    let context = pairs([("path", path.to_string().into()), ("scheme", scheme.into())]);
    let error = Error::of(ErrorClass::InvalidCompressionSchemeError, context);
    match scheme {
        None | Some("") => error.with_message("could not determine compression scheme"),
        Some(_) => error,
    }
}

/// A port cannot be reached from the host. A port that is not configured never will be,
/// whatever `retryable` says.
#[must_use]
pub fn exposed_port_unavailable(
    port: impl Into<i64>,
    exposed_ports: impl IntoIterator<Item = impl Into<i64>>,
    reason: &str,
    retryable: Option<bool>,
) -> Error {
    let port = port.into();
    let ports: Vec<i64> = exposed_ports.into_iter().map(Into::into).collect();
    let context =
        pairs([("port", port.into()), ("exposed_ports", ports.into()), ("reason", reason.into())]);
    let error = Error::of(ErrorClass::ExposedPortUnavailableError, context);
    if reason == "not_configured" {
        error
            .with_message(format!("port {port} is not configured for host exposure"))
            .with_retryable(false)
    } else {
        error.with_retryable(retryable)
    }
}

fn of_command<const N: usize>(
    class: ErrorClass,
    command: impl IntoIterator<Item = impl Display>,
    more: [(&str, Value); N],
) -> Error {
    let command: Vec<String> = command.into_iter().map(|part| part.to_string()).collect();
    let mut context =
        pairs([("command", command.clone().into()), ("command_str", command.join(" ").into())]);
    context.extend(pairs(more));
    let mut error = Error::of(class, context);
    error.data.detail = Detail { command: Some(command), ..Detail::default() };
    error
}

/// A command could not be run, for a reason that has a `code` but no class of its own.
#[must_use]
pub fn exec_failure(
    message: impl Into<String>,
    code: &'static str,
    command: impl IntoIterator<Item = impl Display>,
) -> Error {
    of_command(ErrorClass::ExecFailureError, command, [])
        .with_message(message)
        .with_code(code)
        .with_op("exec")
}

/// A command ran and failed.
#[must_use]
pub fn exec_nonzero(
    command: impl IntoIterator<Item = impl Display>,
    exit_code: impl Into<i64>,
    stdout: impl Into<Vec<u8>>,
    stderr: impl Into<Vec<u8>>,
) -> Error {
    let (exit_code, stdout, stderr) = (exit_code.into(), stdout.into(), stderr.into());
    let out = String::from_utf8_lossy(&stdout).into_owned();
    let err = String::from_utf8_lossy(&stderr).into_owned();
    let message = match (out.as_str(), err.as_str()) {
        ("", "") => None,
        (out, "") => Some(out.to_owned()),
        ("", err) => Some(err.to_owned()),
        (out, err) => Some(format!("stdout: {out}\nstderr: {err}")),
    };
    let more = [("exit_code", exit_code.into()), ("stdout", out.into()), ("stderr", err.into())];
    let mut error = of_command(ErrorClass::ExecNonZeroError, command, more);
    error.data.detail.exit_code = Some(exit_code);
    error.data.detail.stdout = Some(stdout);
    error.data.detail.stderr = Some(stderr);
    match message {
        Some(message) => error.with_message(message),
        None => error,
    }
}

/// A command did not end in time.
///
/// ```
/// use bastide_model::error::raise;
/// use serde_json::Number;
///
/// let error = raise::exec_timeout(["sleep", "9"], Number::from_f64(1.5));
/// assert_eq!(error.code(), "exec_timeout");
/// assert_eq!(error.context()["command_str"], "sleep 9");
/// assert_eq!(error.timeout_s(), Some(1.5));
/// ```
#[must_use]
pub fn exec_timeout(
    command: impl IntoIterator<Item = impl Display>,
    timeout_s: Option<Number>,
) -> Error {
    let seconds = timeout_s.as_ref().and_then(Number::as_f64);
    let more = [("timeout_s", timeout_s.map_or(Value::Null, Value::Number))];
    let mut error = of_command(ErrorClass::ExecTimeoutError, command, more);
    error.data.detail.timeout_s = seconds;
    error
}

/// A command could not be started or followed.
#[must_use]
pub fn exec_transport(command: impl IntoIterator<Item = impl Display>) -> Error {
    of_command(ErrorClass::ExecTransportError, command, [])
}

/// No interactive process has that id.
#[must_use]
pub fn pty_session_not_found(session_id: i64) -> Error {
    let context = pairs([("session_id", session_id.into())]);
    let mut error = Error::of(ErrorClass::PtySessionNotFoundError, context);
    error.data.detail.session_id = Some(session_id);
    error
}

/// A patch names a path that is `absolute`, leaves the workspace (`escape_root`) or is `empty`.
#[must_use]
pub fn apply_patch_path(path: impl Display, reason: &str) -> Error {
    let path = path.to_string();
    let message = match reason {
        "absolute" => Some(format!("apply_patch path must be relative: {path}")),
        "escape_root" => None,
        _ => Some("apply_patch path must be non-empty".to_owned()),
    };
    let context = pairs([("path", path.into()), ("reason", reason.into())]);
    let error = Error::of(ErrorClass::ApplyPatchPathError, context);
    match message {
        Some(message) => error.with_message(message),
        None => error,
    }
}

/// A patch is malformed or does not fit its file.
#[must_use]
pub fn apply_patch_diff(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::ApplyPatchDiffError, Map::new()).with_message(message)
}

/// A patch edits a file that does not exist.
#[must_use]
pub fn apply_patch_file_not_found(path: impl Display) -> Error {
    of_path(ErrorClass::ApplyPatchFileNotFoundError, "path", path)
}

/// A patch edits a file that is not UTF-8.
#[must_use]
pub fn apply_patch_decode(path: impl Display) -> Error {
    of_path(ErrorClass::ApplyPatchDecodeError, "path", path)
}

/// A file to read does not exist.
#[must_use]
pub fn workspace_read_not_found(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceReadNotFoundError, "path", path)
}

/// Reading from the workspace failed.
#[must_use]
pub fn workspace_archive_read(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceArchiveReadError, "path", path)
}

/// Writing to the workspace failed.
#[must_use]
pub fn workspace_archive_write(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceArchiveWriteError, "path", path)
}

/// What was given to write is not bytes.
#[must_use]
pub fn workspace_write_type(path: impl Display, actual_type: &str) -> Error {
    of_path(ErrorClass::WorkspaceWriteTypeError, "path", path)
        .with_context("actual_type", actual_type)
}

/// A session could not be stopped.
#[must_use]
pub fn workspace_stop(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceStopError, "path", path)
}

/// A session could not be started.
#[must_use]
pub fn workspace_start(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceStartError, "path", path)
}

/// The workspace's folder is gone.
#[must_use]
pub fn workspace_root_not_found(path: impl Display) -> Error {
    of_path(ErrorClass::WorkspaceRootNotFoundError, "path", path)
}

/// A host file of a manifest cannot be read.
#[must_use]
pub fn local_file_read(src: impl Display) -> Error {
    of_path(ErrorClass::LocalFileReadError, "src", src)
}

/// A host folder of a manifest cannot be read.
#[must_use]
pub fn local_dir_read(src: impl Display) -> Error {
    of_path(ErrorClass::LocalDirReadError, "src", src)
}

/// A host file of a manifest cannot be hashed.
#[must_use]
pub fn local_checksum(src: impl Display) -> Error {
    of_path(ErrorClass::LocalChecksumError, "src", src)
}

/// The image has no git.
#[must_use]
pub fn git_missing_in_image() -> Error {
    Error::of(ErrorClass::GitMissingInImageError, Map::new())
}

/// A repository cannot be cloned.
#[must_use]
pub fn git_clone(url: &str, reference: &str, stderr: Option<&str>) -> Error {
    let context =
        pairs([("url", url.into()), ("ref", reference.into()), ("stderr", stderr.into())]);
    Error::of(ErrorClass::GitCloneError, context)
}

/// The part of a repository asked for is not a path inside it: `absolute`, `empty`,
/// `parent_traversal` or `windows_path`.
#[must_use]
pub fn git_subpath(repo: &str, subpath: &str, reason: &str) -> Error {
    let context =
        pairs([("repo", repo.into()), ("subpath", subpath.into()), ("reason", reason.into())]);
    Error::of(ErrorClass::GitSubpathError, context)
}

/// A cloned repository cannot be copied into the workspace.
#[must_use]
pub fn git_copy(src_root: &str, dest: impl Display, stderr: Option<&str>) -> Error {
    let context = pairs([
        ("src_root", src_root.into()),
        ("dest", dest.to_string().into()),
        ("stderr", stderr.into()),
    ]);
    Error::of(ErrorClass::GitCopyError, context)
}

/// The program that mounts is not there.
#[must_use]
pub fn mount_tool_missing(tool: &str) -> Error {
    Error::of(ErrorClass::MountToolMissingError, pairs([("tool", tool.into())]))
}

/// A mount is configured wrongly.
#[must_use]
pub fn mount_config(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::MountConfigError, Map::new()).with_message(message)
}

/// The command that mounts failed.
#[must_use]
pub fn mount_command(command: &str, stderr: Option<&str>) -> Error {
    let context = pairs([("command", command.into()), ("stderr", stderr.into())]);
    Error::of(ErrorClass::MountCommandError, context)
}

/// Skills are configured wrongly.
#[must_use]
pub fn skills_config(message: impl Into<String>) -> Error {
    Error::of(ErrorClass::SkillsConfigError, Map::new()).with_message(message)
}

fn of_snapshot(class: ErrorClass, snapshot_id: &str, path: impl Display) -> Error {
    let path = path.to_string();
    Error::of(class, pairs([("snapshot_id", snapshot_id.into()), ("path", path.into())]))
}

/// A snapshot cannot be saved.
#[must_use]
pub fn snapshot_persist(snapshot_id: &str, path: impl Display) -> Error {
    of_snapshot(ErrorClass::SnapshotPersistError, snapshot_id, path)
}

/// A snapshot cannot be restored.
#[must_use]
pub fn snapshot_restore(snapshot_id: &str, path: impl Display) -> Error {
    of_snapshot(ErrorClass::SnapshotRestoreError, snapshot_id, path)
}

/// There is nothing to restore a snapshot from.
#[must_use]
pub fn snapshot_not_restorable(snapshot_id: &str, path: impl Display) -> Error {
    of_snapshot(ErrorClass::SnapshotNotRestorableError, snapshot_id, path)
}
