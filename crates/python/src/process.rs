//! A command whose output is read while it runs.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use bastide::{Error, ErrorKind, OutputEvent, Process, ProcessWriter};
use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::sync::{Mutex, watch};

use crate::bridge::call;
use crate::convert;
use crate::runtime::ProcessBound;

/// A command whose output is read while it runs. It ends when nobody has it any more.
#[pyclass(frozen, name = "Process", module = "bastide._native")]
pub(crate) struct NativeProcess {
    process: ProcessBound<Arc<Mutex<Option<Process>>>>,
    writer: ProcessBound<ProcessWriter>,
    /// What it said, and nobody was told yet.
    output: Arc<Output>,
    /// Whether it was ended: whoever waits for what it says waits no more.
    ended: watch::Sender<bool>,
}

impl NativeProcess {
    pub(crate) fn new(process: Process) -> Self {
        Self {
            writer: ProcessBound::new("process", process.writer()),
            process: ProcessBound::new("process", Arc::new(Mutex::new(Some(process)))),
            output: Arc::default(),
            ended: watch::Sender::new(false),
        }
    }
}

type Output = std::sync::Mutex<VecDeque<OutputEvent>>;

fn lock(output: &Output) -> MutexGuard<'_, VecDeque<OutputEvent>> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

fn was_ended() -> Error {
    Error::new(ErrorKind::NotFound, "the command was ended")
}

#[pymethods]
impl NativeProcess {
    /// What it says next: `("stdout" | "stderr", bytes)`, or `("exit", (code, reason, detail))`; `None`
    /// if another call was told it. What a cancelled call would have been told is told the next one.
    fn next(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (process, output) = (Arc::clone(self.process.get()?), Arc::clone(&self.output));
        let mut ended = self.ended.subscribe();
        let work = async move {
            let read = async {
                let mut held = process.lock().await;
                while lock(&output).is_empty() {
                    let Some(process) = held.as_mut() else { return Err(was_ended()) };
                    match process.next().await? {
                        OutputEvent::Lost(_) => {}
                        event => lock(&output).push_back(event),
                    }
                }
                Ok(())
            };
            tokio::select! {
                read = read => read?,
                _ = ended.wait_for(|ended| *ended) => return Err(was_ended()),
            }
            Ok(output)
        };
        call(py, "exec", work, |py, output| match lock(&output).pop_front() {
            Some(OutputEvent::Stdout(data)) => ("stdout", PyBytes::new(py, &data)).into_py_any(py),
            Some(OutputEvent::Stderr(data)) => ("stderr", PyBytes::new(py, &data)).into_py_any(py),
            Some(OutputEvent::Exit(exit)) => {
                ("exit", (exit.code, exit.reason.as_str(), exit.detail)).into_py_any(py)
            }
            Some(OutputEvent::Lost(_)) | None => Ok(py.None()),
        })
    }

    /// Writes to its standard input, or types on its terminal.
    fn write(&self, py: Python<'_>, data: Vec<u8>) -> PyResult<Py<PyAny>> {
        let writer = self.writer.get()?.clone();
        let work = async move { writer.write(Bytes::from(data)).await };
        call(py, "exec", work, convert::nothing)
    }

    /// Says that no more input follows.
    fn close_input(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let writer = self.writer.get()?.clone();
        call(py, "exec", async move { writer.close().await }, convert::nothing)
    }

    /// Gives its terminal another size.
    fn resize(&self, py: Python<'_>, rows: u16, columns: u16) -> PyResult<Py<PyAny>> {
        let writer = self.writer.get()?.clone();
        call(py, "exec", async move { writer.resize(rows, columns).await }, convert::nothing)
    }

    /// Ends it, with everything descended from it.
    fn end(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let process = Arc::clone(self.process.get()?);
        self.ended.send_replace(true);
        let work = async move {
            drop(process.lock().await.take());
            Ok(())
        };
        call(py, "exec", work, convert::nothing)
    }
}
