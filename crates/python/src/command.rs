//! Commands as Python gives them, and what came of them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, Output};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;

/// Variables of one command.
pub(crate) type Env = Vec<(OsString, OsString)>;

/// A time in seconds, as Python has it.
pub(crate) fn seconds(timeout: f64) -> Duration {
    // A deadline beyond all time is none that anybody would see pass.
    Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::from_secs(1 << 40))
}

/// A program and its arguments.
pub(crate) fn command(
    argv: Vec<OsString>,
    env: Env,
    user: Option<String>,
    timeout: Option<f64>,
) -> Command {
    let mut command = Command::new(argv.into_iter().map(OsStringExt::into_vec));
    for (key, value) in env {
        command = command.env(key.into_vec(), value.into_vec());
    }
    if let Some(user) = user {
        command = command.user(user);
    }
    match timeout {
        Some(timeout) => command.timeout(seconds(timeout)),
        None => command,
    }
}

/// A line for the shell, or a program and its arguments.
pub(crate) fn with_shell(
    argv: Vec<OsString>,
    shell: Option<&str>,
    env: Option<Env>,
    user: Option<String>,
    timeout: Option<f64>,
) -> Command {
    let mut made = match shell {
        Some(line) => Command::shell(line),
        None => Command::new(argv.into_iter().map(OsStringExt::into_vec)),
    };
    for (key, value) in env.into_iter().flatten() {
        made = made.env(key.into_vec(), value.into_vec());
    }
    if let Some(user) = user {
        made = made.user(user);
    }
    match timeout {
        Some(timeout) => made.timeout(seconds(timeout)),
        None => made,
    }
}

/// The same, started in that folder.
pub(crate) fn with_cwd(py: Python<'_>, command: Command, cwd: Option<&str>) -> PyResult<Command> {
    let Some(cwd) = cwd else { return Ok(command) };
    match cwd.parse() {
        Ok(cwd) => Ok(command.cwd(cwd)),
        Err(error) => {
            let error = Error::new(ErrorKind::InvalidInput, format!("cwd {cwd:?}: {error}"));
            Err(errors::raise(py, &error, "exec"))
        }
    }
}

/// What a command said, and how it ended.
pub(crate) fn output(py: Python<'_>, output: Output) -> PyResult<Py<PyAny>> {
    let is_truncated = output.is_truncated();
    (
        PyBytes::new(py, &output.stdout),
        PyBytes::new(py, &output.stderr),
        output.exit.code,
        output.exit.reason.as_str(),
        output.exit.detail,
        is_truncated,
    )
        .into_py_any(py)
}
