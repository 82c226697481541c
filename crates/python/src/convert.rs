//! Values of Rust as Python objects.

use bastide::compat::{ExecResult, PtyExecUpdate};
use bastide::{ExposedPort, FileInfo, FileKind, Materialized};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use serde_json::Value;

/// `None`.
pub(crate) fn nothing<T>(py: Python<'_>, _: T) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

/// Any value that has a Python form.
pub(crate) fn plain<T: for<'py> IntoPyObjectExt<'py>>(
    py: Python<'_>,
    value: T,
) -> PyResult<Py<PyAny>> {
    value.into_py_any(py)
}

/// Bytes.
pub(crate) fn bytes(py: Python<'_>, data: impl AsRef<[u8]>) -> PyResult<Py<PyAny>> {
    Ok(PyBytes::new(py, data.as_ref()).into_any().unbind())
}

/// JSON.
pub(crate) fn json(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::Null => Ok(py.None()),
        Value::Bool(value) => value.into_py_any(py),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => number.into_py_any(py),
            (None, Some(number)) => number.into_py_any(py),
            (None, None) => number.as_f64().into_py_any(py),
        },
        Value::String(text) => text.into_py_any(py),
        Value::Array(items) => {
            let items: PyResult<Vec<_>> = items.iter().map(|item| json(py, item)).collect();
            Ok(PyList::new(py, items?)?.into_any().unbind())
        }
        Value::Object(fields) => {
            let made = PyDict::new(py);
            for (key, value) in fields {
                made.set_item(key, json(py, value)?)?;
            }
            Ok(made.into_any().unbind())
        }
    }
}

/// What a command said, and its code.
pub(crate) fn exec_result(py: Python<'_>, done: ExecResult) -> PyResult<Py<PyAny>> {
    let said = (PyBytes::new(py, &done.stdout), PyBytes::new(py, &done.stderr), done.exit_code);
    said.into_py_any(py)
}

/// What an interactive process said.
pub(crate) fn update(py: Python<'_>, update: PtyExecUpdate) -> PyResult<Py<PyAny>> {
    let output = PyBytes::new(py, &update.output);
    (update.process_id, output, update.exit_code, update.original_token_count).into_py_any(py)
}

/// Entries of a folder: path, permission bits, owner, group, size and kind of each.
pub(crate) fn listing(py: Python<'_>, entries: Vec<FileInfo>) -> PyResult<Py<PyAny>> {
    let rows: PyResult<Vec<_>> = entries.into_iter().map(|entry| row(py, entry)).collect();
    Ok(PyList::new(py, rows?)?.into_any().unbind())
}

/// One entry, as in a [`listing`].
pub(crate) fn file_info(py: Python<'_>, entry: FileInfo) -> PyResult<Py<PyAny>> {
    Ok(row(py, entry)?.into_any().unbind())
}

fn row(py: Python<'_>, entry: FileInfo) -> PyResult<Bound<'_, PyTuple>> {
    let kind = match entry.kind {
        FileKind::Dir => "directory",
        FileKind::File => "file",
        FileKind::Symlink => "symlink",
        _ => "other",
    };
    let owner = entry.owner.unwrap_or_else(|| entry.uid.to_string());
    let group = entry.group.unwrap_or_else(|| entry.gid.to_string());
    (entry.path, entry.mode, owner, group, entry.size, kind).into_pyobject(py)
}

/// The files of the host that were copied, with their hashes.
pub(crate) fn materialized(py: Python<'_>, done: Materialized) -> PyResult<Py<PyAny>> {
    let files: Vec<_> = done.files.into_iter().map(|file| (file.path, file.sha256)).collect();
    files.into_py_any(py)
}

/// Where a port is reached.
pub(crate) fn port(py: Python<'_>, to: ExposedPort) -> PyResult<Py<PyAny>> {
    (to.host, to.port, to.tls, to.query).into_py_any(py)
}
