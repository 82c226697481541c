//! How asyncio and tokio meet.
//!
//! A call is spawned on the runtime, and its result goes into the mailbox of the event loop that asked.
//! Only the first of many results wakes the loop, by an eventfd; the loop's own thread turns results
//! into Python objects. So no thread of the runtime ever takes the GIL.
//!
//! Without a running loop a call waits, with the GIL released, and answers signals meanwhile.

use std::future::Future;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bastide::Result;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::task::AbortHandle;

use crate::runtime::ProcessBound;
use crate::{errors, runtime, sys};

/// How often a waiting call looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Makes a result a Python object, in a thread that has the GIL.
pub(crate) type Convert<T> = fn(Python<'_>, T) -> PyResult<Py<PyAny>>;

type Finish = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

struct Finished {
    future: Py<PyAny>,
    result: Finish,
}

struct Queue {
    finished: Mutex<Vec<Finished>>,
    bell: OwnedFd,
}

impl Queue {
    fn push(&self, finished: Finished) {
        let mut all = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(finished);
        if all.len() == 1 {
            sys::notify(&self.bell);
        }
    }

    fn take(&self) -> Vec<Finished> {
        let mut all = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        sys::reset(&self.bell);
        std::mem::take(&mut *all)
    }
}

/// What an event loop is still to be told.
#[pyclass(frozen, module = "bastide._native")]
pub(crate) struct Mailbox {
    queue: ProcessBound<Arc<Queue>>,
}

#[pymethods]
impl Mailbox {
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.queue.get()?.bell.as_raw_fd())
    }

    /// Gives every finished call its result; called by the event loop.
    fn deliver(&self, py: Python<'_>) -> PyResult<()> {
        // What nobody waits for any more is dropped here, and may have something to end in the sandbox.
        let runtime = runtime::handle()?;
        let _entered = runtime.enter();
        let mut delivered = Ok(());
        for finished in self.queue.get()?.take() {
            // One that cannot be told keeps no other waiting.
            delivered = delivered.and(finished.deliver(py));
        }
        delivered
    }
}

impl Finished {
    fn deliver(self, py: Python<'_>) -> PyResult<()> {
        let future = self.future.bind(py);
        if future.call_method0(intern!(py, "done"))?.is_truthy()? {
            return Ok(());
        }
        let (name, value) = match (self.result)(py) {
            Ok(value) => (intern!(py, "set_result"), value),
            Err(error) => (intern!(py, "set_exception"), error.into_value(py).into_any()),
        };
        future.call_method1(name, (value,)).map(drop)
    }
}

/// Ends a call that nobody waits for any more, and with it what it does in the sandbox.
#[pyclass(frozen, module = "bastide._native")]
pub(crate) struct Abort(ProcessBound<AbortHandle>);

#[pymethods]
impl Abort {
    fn __call__(&self) {
        // In a forked child it is the parent's call.
        if let Ok(call) = self.0.get() {
            call.abort();
        }
    }
}

/// Does `work` and gives its result: as a future of the running event loop, or by waiting for it
/// where no loop runs. `op` names the operation in errors.
pub(crate) fn call<T: Send + 'static>(
    py: Python<'_>,
    op: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
    convert: Convert<T>,
) -> PyResult<Py<PyAny>> {
    match running_loop(py)? {
        Some(event_loop) => promise(py, &event_loop, op, work, convert),
        None => wait(py, op, work, convert),
    }
}

fn finish<T>(
    py: Python<'_>,
    op: &str,
    done: Result<T>,
    convert: Convert<T>,
) -> PyResult<Py<PyAny>> {
    match done {
        Ok(value) => convert(py, value),
        Err(error) => Err(errors::raise(py, &error, op)),
    }
}

fn promise<T: Send + 'static>(
    py: Python<'_>,
    event_loop: &Bound<'_, PyAny>,
    op: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
    convert: Convert<T>,
) -> PyResult<Py<PyAny>> {
    static CALL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CALL
        .get_or_try_init(py, || py.import("bastide._bridge")?.getattr("Call").map(Bound::unbind))?;
    let queue = queue_of(py, event_loop)?;
    let future = class.bind(py).call1((event_loop,))?;
    let waiting = future.clone().unbind();
    let task = runtime::handle()?.spawn(async move {
        let done = work.await;
        let result: Finish = Box::new(move |py| finish(py, op, done, convert));
        queue.push(Finished { future: waiting, result });
    });
    let abort = Bound::new(py, Abort(ProcessBound::new("call", task.abort_handle())))?;
    future.setattr(intern!(py, "_abort"), abort)?;
    Ok(future.unbind())
}

fn wait<T: Send + 'static>(
    py: Python<'_>,
    op: &'static str,
    work: impl Future<Output = Result<T>> + Send + 'static,
    convert: Convert<T>,
) -> PyResult<Py<PyAny>> {
    static READY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (sender, receiver) = mpsc::channel();
    let task = runtime::handle()?.spawn(async move {
        // Nobody waits any more after a signal.
        drop(sender.send(work.await));
    });
    // One owner for the channel's end: it is looked at from this thread alone.
    let receiver = Mutex::new(receiver);
    loop {
        let next = py
            .detach(|| receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LOOK));
        match next {
            Ok(done) => {
                let value = finish(py, op, done, convert)?;
                let class = READY.get_or_try_init(py, || {
                    py.import("bastide._bridge")?.getattr("Ready").map(Bound::unbind)
                })?;
                return class.call1(py, (value,));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    task.abort();
                    return Err(raised);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the call ended without a result"));
            }
        }
    }
}

/// The event loop that runs in this thread.
fn running_loop(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    static GET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let get = GET.get_or_try_init(py, || {
        py.import("asyncio.events")?.getattr("_get_running_loop").map(Bound::unbind)
    })?;
    let running = get.bind(py).call0()?;
    Ok((!running.is_none()).then_some(running))
}

/// The mailbox of a loop, made at its first call. The loop owns it, and both go together.
fn queue_of(py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<Arc<Queue>> {
    let name = intern!(py, "_bastide_mailbox");
    if let Some(found) = event_loop.getattr_opt(name)? {
        // One of a parent before fork() is not to be used.
        if let Ok(queue) = found.cast::<Mailbox>()?.get().queue.get() {
            return Ok(Arc::clone(queue));
        }
    }
    let queue = Arc::new(Queue { finished: Mutex::default(), bell: sys::eventfd()? });
    let mailbox = Mailbox { queue: ProcessBound::new("mailbox", Arc::clone(&queue)) };
    let mailbox = Bound::new(py, mailbox)?;
    let deliver = mailbox.getattr(intern!(py, "deliver"))?;
    event_loop.call_method1(intern!(py, "add_reader"), (queue.bell.as_raw_fd(), deliver))?;
    event_loop.setattr(name, mailbox)?;
    Ok(queue)
}
