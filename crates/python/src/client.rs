//! Sessions of one home: making, finding and removing them.

use std::path::PathBuf;
use std::sync::Arc;

use bastide::egress::EnvironmentReader;
use bastide::events::{AuditOptions, EventOptions};
use bastide::{
    Backend, Client, Error, ErrorKind, Result, ResumeOptions, Session, SessionId, SessionInfo,
    Store, SweepOptions,
};
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::bridge::call;
use crate::runtime::{self, ProcessBound};
use crate::session::NativeSession;
use crate::settings::{self, Settings};
use crate::{convert, errors, journal};

/// Sessions of one home on one backend.
#[pyclass(frozen, name = "Client", module = "bastide._native")]
pub(crate) struct NativeClient {
    client: ProcessBound<Client>,
}

#[pymethods]
impl NativeClient {
    /// A client for the sessions in `home`. With an image they are containers of the daemon at `engine`.
    #[new]
    #[pyo3(signature = (home, *, image=None, docker=false, engine=None, certificates=None, audit=false, secrets=None, environment=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        home: PathBuf,
        image: Option<String>,
        docker: bool,
        engine: Option<String>,
        certificates: Option<PathBuf>,
        audit: bool,
        secrets: Option<Vec<(String, String)>>,
        environment: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let wanted = docker.then(|| (image.unwrap_or_default(), engine, certificates));
        let events = secrets.into_iter().flatten();
        let events = events.fold(EventOptions::new(), |all, (name, value)| all.secret(name, value));
        let events = match audit {
            true => events.audit(AuditOptions::default().actor("python")),
            false => events,
        };
        let handle = runtime::handle()?;
        let _entered = handle.enter();
        let client = py
            .detach(|| open(home, wanted, events))
            .map_err(|error| errors::raise(py, &error, "create"))?;
        let client = match environment {
            Some(read) => client.with_environment(reader(read)),
            None => client,
        };
        Ok(Self { client: ProcessBound::new("client", client) })
    }

    /// Makes a session.
    fn create(&self, py: Python<'_>, settings: &str) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let settings =
            Settings::parse(settings).map_err(|error| errors::raise(py, &error, "create"))?;
        let work = async move {
            let Settings { manifest, options, starts } = settings;
            match starts {
                true => client.create(&manifest, options).await,
                false => client.create_unstarted(&manifest, options).await,
            }
        };
        call(py, "create", work, session)
    }

    /// A session of this home with what is left of it: attached to where it runs, else booted with its
    /// files. `None` if there is nothing here.
    /// With mounts that have keys it takes the manifest, which has them.
    #[pyo3(signature = (id, tied, manifest=None))]
    fn resume(
        &self,
        py: Python<'_>,
        id: &str,
        tied: bool,
        manifest: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let id = parsed(py, id)?;
        let manifest = manifest.map(settings::manifest).transpose();
        let manifest = manifest.map_err(|error| errors::raise(py, &error, "resume"))?;
        let work = async move {
            if client.backend_of(&id).is_none() {
                return Ok(None);
            }
            let options = ResumeOptions::default();
            let options = if tied { options.tied() } else { options };
            let options = match manifest {
                Some(manifest) => options.manifest(manifest),
                None => options,
            };
            match client.resume_unstarted(&id, options).await {
                Ok(session) => Ok(Some(session)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        };
        call(py, "resume", work, |py, found| match found {
            Some(found) => session(py, found),
            None => Ok(py.None()),
        })
    }

    /// Whether there is anything of that session in this home.
    fn knows(&self, py: Python<'_>, id: &str) -> PyResult<bool> {
        let id = parsed(py, id)?;
        Ok(self.client.get()?.backend_of(&id).is_some())
    }

    /// A session that runs.
    fn attach(&self, py: Python<'_>, id: &str) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let id = client.find(id).map_err(|error| errors::raise(py, &error, "attach"))?;
        call(py, "attach", async move { client.attach(&id).await }, session)
    }

    /// Sessions that begin with the files of a running one, as they are now or were at a point.
    #[pyo3(signature = (session, count, at=None))]
    fn fork(
        &self,
        py: Python<'_>,
        session: &NativeSession,
        count: usize,
        at: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let (client, from) = (self.client.get()?.clone(), session.share()?);
        let work = async move { client.fork(&from, count, at.as_deref()).await };
        call(py, "create", work, |py, forks| {
            let forks: PyResult<Vec<_>> =
                forks.into_iter().map(|fork| self::session(py, fork)).collect();
            convert::plain(py, forks?)
        })
    }

    /// The points of a session.
    fn log(&self, py: Python<'_>, id: &str) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let id = parsed(py, id)?;
        call(py, "log", async move { client.log(&id) }, journal::log)
    }

    /// Removes a session, in whatever state it is. Says whether there was one.
    fn delete(&self, py: Python<'_>, id: &str) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let id = parsed(py, id)?;
        call(py, "delete", async move { client.delete(&id).await }, convert::plain)
    }

    /// Every session of the backend.
    fn list(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        call(py, "list", async move { client.list().await }, |py, all| {
            convert::json(py, &Value::Array(all.iter().map(shown).collect()))
        })
    }

    /// Removes what no session needs. Gives the names of what was removed.
    #[pyo3(signature = (*, ended=false))]
    fn sweep(&self, py: Python<'_>, ended: bool) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let options = SweepOptions::default();
        let options = if ended { options.ended() } else { options };
        call(py, "sweep", async move { client.sweep_with(options).await }, |py, report| {
            let removed = report.removed.iter().filter_map(|swept| swept.id.as_ref());
            let removed: Vec<_> = removed.map(ToString::to_string).collect();
            convert::plain(py, removed)
        })
    }
}

fn session(py: Python<'_>, session: Session) -> PyResult<Py<PyAny>> {
    Ok(Bound::new(py, NativeSession::new(session))?.into_any().unbind())
}

fn parsed(py: Python<'_>, id: &str) -> PyResult<SessionId> {
    id.parse().map_err(|error| errors::raise(py, &error, "find"))
}

fn shown(info: &SessionInfo) -> Value {
    json!({
        "id": info.id.as_str(),
        "status": info.status.as_str(),
        "backend": info.backend,
        "root": info.root,
        "created_at_ms": info.created_at_ms,
        "tied_to_owner": info.tied_to_owner,
        "trouble": info.trouble,
    })
}

fn open(
    home: PathBuf,
    docker: Option<(String, Option<String>, Option<PathBuf>)>,
    events: EventOptions,
) -> Result<Client> {
    let home = std::path::absolute(&home).map_err(|error| {
        let message = format!("cannot use {} as a home: {error}", home.display());
        Error::new(ErrorKind::InvalidInput, message)
    })?;
    let backend: Arc<dyn Backend> = match docker {
        None => Arc::new(LocalBackend::new(&home)?),
        Some((image, engine, certificates)) => {
            let address = match engine {
                Some(engine) => EngineAddress::parse(&engine, certificates)?,
                None => EngineAddress::default(),
            };
            Arc::new(DockerBackend::new(&home, address, DockerOptions::new(image))?)
        }
    };
    let client = Store::open(home.join("snapshots"))?.known_to(Client::new(backend))?;
    Ok(client.with_events(events))
}

/// Reads variables by a function of Python's. What that cannot tell is not set.
fn reader(read: Py<PyAny>) -> EnvironmentReader {
    EnvironmentReader::new(move |name| {
        Python::attach(|py| read.call1(py, (name,)).ok()?.extract::<Option<String>>(py).ok()?)
    })
}
