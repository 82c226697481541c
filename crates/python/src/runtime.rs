//! The one tokio runtime of this process, and what becomes of objects in a forked child.

use std::any::Any;
use std::cell::RefCell;
use std::num::NonZero;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, mem};

use bastide::backend::KeepAlive;
use bastide::host::ForkGuard;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::sys;

/// How many threads serve all sessions of a program at most: what they do is wait.
const MOST_WORKERS: usize = 4;

/// The runtime, and the process it was made in: its threads do not exist in a forked child.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// The runtime of this process, made at first use.
pub(crate) fn handle() -> PyResult<Handle> {
    let held = FORKING.with_borrow(|forking| {
        forking.as_ref()?.runtime.as_ref().map(|(_, runtime)| runtime.handle().clone())
    });
    if let Some(handle) = held {
        return Ok(handle);
    }
    let mut made = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = process::id();
    if let Some((owner, runtime)) = made.as_ref()
        && *owner == pid
    {
        return Ok(runtime.handle().clone());
    }
    let fresh = make().map_err(|error| {
        PyRuntimeError::new_err(format!("cannot start the threads that serve sessions: {error}"))
    })?;
    let handle = fresh.handle().clone();
    if let Some((_, inherited)) = made.replace((pid, fresh)) {
        // It is the parent's: nothing here may wait for its threads.
        let _leaked = mem::ManuallyDrop::new(inherited);
    }
    Ok(handle)
}

fn make() -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread()
        .worker_threads(cores.min(MOST_WORKERS))
        .thread_name("bastide")
        .enable_all()
        .build()
}

/// A value that belongs to the process it was made in. In a forked child it can be neither used nor
/// dropped: both would speak to the guest from two processes.
#[derive(Debug)]
pub(crate) struct ProcessBound<T: 'static> {
    pid: u32,
    what: &'static str,
    value: Option<T>,
}

impl<T> ProcessBound<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { pid: process::id(), what, value: Some(value) }
    }

    /// The value, in the process it was made in.
    pub(crate) fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if self.pid == process::id() => Ok(value),
            _ => Err(made_before_fork(self.what)),
        }
    }
}

/// The error of using an object of the parent.
pub(crate) fn made_before_fork(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!(
        "this {what} was made before fork(); make a new one in the child process"
    ))
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.pid != process::id() {
            let _leaked = mem::ManuallyDrop::new(value);
            return;
        }
        let value = FORKING.with_borrow_mut(|forking| match forking {
            Some(forking) => {
                forking.dropped.push(Box::new(value));
                None
            }
            None => value,
        });
        if value.is_none() {
            return;
        }
        // What is dropped may end commands, which takes a runtime.
        let handle = handle();
        let _entered = handle.as_ref().ok().map(Handle::enter);
        drop(value);
    }
}

/// What a thread that forks holds, so that a child finds nothing locked for ever.
struct ForkState {
    _locks: ForkGuard,
    runtime: MutexGuard<'static, Option<(u32, Runtime)>>,
    /// What was dropped meanwhile: Python may collect garbage before it forks.
    dropped: Vec<Box<dyn Any>>,
}

thread_local! {
    static FORKING: RefCell<Option<ForkState>> = const { RefCell::new(None) };
}

/// Waits until no other thread is in the middle of what a child could never finish.
#[pyfunction]
pub(crate) fn before_fork() {
    let runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let held = ForkState { _locks: ForkGuard::acquire(), runtime, dropped: Vec::new() };
    FORKING.set(Some(held));
}

/// Lets other threads go on.
#[pyfunction]
pub(crate) fn after_fork_in_parent() {
    let Some(ForkState { _locks, runtime, dropped }) = FORKING.take() else { return };
    drop((_locks, runtime));
    let handle = handle();
    let _entered = handle.as_ref().ok().map(Handle::enter);
    drop(dropped);
}

/// Closes the copies of descriptors that would keep the parent's sessions up.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    if let Some(ForkState { _locks, runtime, dropped }) = FORKING.take() {
        drop((_locks, runtime));
        let _leaked = mem::ManuallyDrop::new(dropped);
    }
    for descriptor in KeepAlive::open_descriptors() {
        sys::close(descriptor);
    }
}
