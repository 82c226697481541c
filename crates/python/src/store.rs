//! Snapshots of one home.

use std::io::{Seek, SeekFrom};
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use bastide::{Error, ErrorKind, Result, Store};
use pyo3::prelude::*;
use serde_json::json;

use crate::bridge::call;
use crate::runtime::ProcessBound;
use crate::session::NativeSession;
use crate::{convert, errors, sys};

/// The content-addressed snapshots of one home.
#[pyclass(frozen, name = "Store", module = "bastide._native")]
pub(crate) struct NativeStore {
    store: ProcessBound<Arc<Store>>,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("snapshots: {error}"))
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

#[pymethods]
impl NativeStore {
    /// The store of the home `home`.
    #[new]
    fn new(py: Python<'_>, home: PathBuf) -> PyResult<Self> {
        let store = Store::open(home.join("snapshots"))
            .map_err(|error| errors::raise(py, &error, "snapshot"))?;
        Ok(Self { store: ProcessBound::new("store", Arc::new(store)) })
    }

    /// Whether there is a snapshot of that name.
    fn exists(&self, py: Python<'_>, name: String) -> PyResult<Py<PyAny>> {
        let store = Arc::clone(self.store.get()?);
        let work = in_thread(move || match store.inspect(&name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        });
        call(py, "snapshot", work, convert::plain)
    }

    /// Saves the workspace of a session: only what changed is stored.
    fn save(
        &self,
        py: Python<'_>,
        session: &NativeSession,
        name: String,
        skip: Vec<String>,
    ) -> PyResult<Py<PyAny>> {
        let (store, session) = (Arc::clone(self.store.get()?), session.share()?);
        let work = async move {
            session.compat().set_persist_workspace_skip_paths(&skip)?;
            session.snapshots(&store).save(&name, None).await
        };
        call(py, "stop", work, |py, report| {
            let shown = json!({
                "name": report.info.name,
                "fingerprint": report.info.fingerprint,
                "entries": report.info.entries,
                "bytes": report.info.bytes,
                "bytes_added": report.bytes_added,
                "files_read": report.files_read,
            });
            convert::json(py, &shown)
        })
    }

    /// Makes the workspace of a session what it was when the snapshot was saved.
    fn restore(
        &self,
        py: Python<'_>,
        session: &NativeSession,
        name: String,
    ) -> PyResult<Py<PyAny>> {
        let (store, session) = (Arc::clone(self.store.get()?), session.share()?);
        let work = async move { session.snapshots(&store).restore(&name, None).await };
        call(py, "start", work, convert::nothing)
    }

    /// Removes a snapshot. Says whether there was one.
    fn remove(&self, py: Python<'_>, name: String) -> PyResult<Py<PyAny>> {
        let store = Arc::clone(self.store.get()?);
        call(py, "snapshot", in_thread(move || store.remove(&name)), convert::plain)
    }

    /// A snapshot as a tar archive: the descriptor of a file without a name.
    fn export(&self, py: Python<'_>, name: String) -> PyResult<Py<PyAny>> {
        let store = Arc::clone(self.store.get()?);
        let work = in_thread(move || {
            let mut file = tempfile::tempfile().map_err(failed)?;
            store.export(&name, &mut file)?;
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            Ok(file)
        });
        call(py, "snapshot", work, |py, file| convert::plain(py, file.into_raw_fd()))
    }

    /// Keeps a tar archive, a regular file that Python has open, as a snapshot.
    fn import_tar(&self, py: Python<'_>, name: String, descriptor: i32) -> PyResult<Py<PyAny>> {
        let store = Arc::clone(self.store.get()?);
        let mut file = sys::duplicate(descriptor)?;
        let work = in_thread(move || {
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            store.import(&name, file).map(drop)
        });
        call(py, "snapshot", work, convert::nothing)
    }
}
