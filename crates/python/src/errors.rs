//! Errors of the core as exceptions: `bastide.errors` makes them from what is known.

use std::error::Error as _;

use bastide::Error;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::convert;
use crate::hint::hint;

/// The exception of an error. `call` names the operation it came from.
pub(crate) fn raise(py: Python<'_>, error: &Error, call: &str) -> PyErr {
    made(py, error, call).map_or_else(|failed| failed, PyErr::from_value)
}

fn made<'py>(py: Python<'py>, error: &Error, call: &str) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("call", call)?;
    fields.set_item("kind", error.kind().as_str())?;
    fields.set_item("class_name", error.class().map(|class| class.name()))?;
    fields.set_item("error_code", error.error_code())?;
    fields.set_item("op", error.op())?;
    fields.set_item("message", error.message())?;
    let context = PyDict::new(py);
    for (key, value) in error.context() {
        context.set_item(key, convert::json(py, value)?)?;
    }
    fields.set_item("context", context)?;
    fields.set_item("retryable", error.is_retryable())?;
    fields.set_item("hint", hint(error))?;
    fields.set_item("command", error.command())?;
    fields.set_item("exit_code", error.exit_code())?;
    fields.set_item("stdout", error.stdout().map(|said| PyBytes::new(py, said)))?;
    fields.set_item("stderr", error.stderr().map(|said| PyBytes::new(py, said)))?;
    fields.set_item("timeout_s", error.timeout_s())?;
    fields.set_item("session_id", error.session_id())?;
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause.to_string());
        // A hint may be known to what went wrong below alone.
        if let Some(below) = cause.downcast_ref::<Error>().and_then(hint)
            && error.hint().is_none()
        {
            fields.set_item("hint", below)?;
        }
        next = cause.source();
    }
    fields.set_item("causes", causes)?;
    py.import("bastide.errors")?.getattr("_made")?.call1((fields,))
}
