//! A live session.

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::path::PathBuf;
use std::sync::Arc;

use bastide::archive::ArchiveLimits;
use bastide::compat::PtyLimits;
use bastide::{Error, ErrorKind, ExtractOptions, Session, WriteOptions};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::bridge::call;
use crate::command::{Env, command, output, with_cwd, with_shell};
use crate::download::download;
use crate::file_content::{FileContent, files, read};
use crate::manifest_entries::{self, Item};
use crate::process::NativeProcess;
use crate::runtime::ProcessBound;
use crate::source::Source;
use crate::{convert, errors};

/// The rows and columns of a terminal that nobody gave a size.
const TERMINAL: (u16, u16) = (24, 80);

/// A live session.
#[pyclass(frozen, name = "Session", module = "bastide._native")]
pub(crate) struct NativeSession {
    session: ProcessBound<Arc<Session>>,
}

impl NativeSession {
    pub(crate) fn new(session: Session) -> Self {
        Self { session: ProcessBound::new("session", Arc::new(session)) }
    }

    pub(crate) fn share(&self) -> PyResult<Arc<Session>> {
        self.session.get().map(Arc::clone)
    }
}

#[pymethods]
impl NativeSession {
    /// The session's name.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.session.get()?.id().to_string())
    }

    /// Where the workspace is inside.
    #[getter]
    fn root(&self) -> PyResult<String> {
        Ok(self.session.get()?.root().as_str().to_owned())
    }

    /// What isolation and limits are really in force.
    #[getter]
    fn receipt(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let receipt = serde_json::to_value(self.session.get()?.receipt())
            .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
        convert::json(py, &receipt)
    }

    /// Runs a command to its end, as the reference does.
    #[pyo3(signature = (argv, env, timeout=None, user=None))]
    fn exec(
        &self,
        py: Python<'_>,
        argv: Vec<OsString>,
        env: Env,
        timeout: Option<f64>,
        user: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let (session, command) = (self.share()?, command(argv, env, user, timeout));
        let work = async move { session.compat().exec_result(command).await };
        call(py, "exec", work, convert::exec_result)
    }

    /// Runs a command to its end, with everything that is known about it.
    #[pyo3(signature = (argv, *, shell=None, env=None, cwd=None, timeout=None, user=None, input=None, output_limit=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn run(
        &self,
        py: Python<'_>,
        argv: Vec<OsString>,
        shell: Option<&str>,
        env: Option<Env>,
        cwd: Option<&str>,
        timeout: Option<f64>,
        user: Option<String>,
        input: Option<Vec<u8>>,
        output_limit: Option<usize>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let mut wanted = with_cwd(py, with_shell(argv, shell, env, user, timeout), cwd)?;
        if let Some(input) = input {
            wanted = wanted.input(input);
        }
        if let Some(limit) = output_limit {
            wanted = wanted.output_limit(limit);
        }
        let work = async move {
            match session.exec(wanted).await {
                Ok(done) => Ok(done),
                // It may have ended with its lease.
                Err(error) => Err(session.explain(error).await),
            }
        };
        call(py, "exec", work, output)
    }

    /// Starts a command whose output is read while it runs.
    #[pyo3(signature = (argv, *, shell=None, env=None, cwd=None, timeout=None, user=None, terminal=None, stream_input=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn spawn(
        &self,
        py: Python<'_>,
        argv: Vec<OsString>,
        shell: Option<&str>,
        env: Option<Env>,
        cwd: Option<&str>,
        timeout: Option<f64>,
        user: Option<String>,
        terminal: Option<(u16, u16)>,
        stream_input: bool,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let mut wanted = with_cwd(py, with_shell(argv, shell, env, user, timeout), cwd)?;
        if stream_input {
            wanted = wanted.stream_input();
        }
        if let Some((rows, columns)) = terminal {
            wanted = wanted.terminal(rows, columns);
        }
        let work = async move { session.spawn(wanted).await };
        call(py, "exec", work, |py, process| {
            Ok(Bound::new(py, NativeProcess::new(process))?.into_any().unbind())
        })
    }

    /// Reads a file: bytes, or the descriptor of a copy if it is large.
    #[pyo3(signature = (path, user=None))]
    fn read(&self, py: Python<'_>, path: String, user: Option<String>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { read(&session, &path, user.as_ref()).await };
        call(py, "read", work, |py, read| match read {
            FileContent::Small(bytes) => convert::bytes(py, &bytes),
            FileContent::Large(file) => file.into_raw_fd().into_py_any(py),
        })
    }

    /// Copies a file to this machine; one of more than `max_bytes` is refused.
    #[pyo3(signature = (path, destination, max_bytes=None))]
    fn download(
        &self,
        py: Python<'_>,
        path: String,
        destination: PathBuf,
        max_bytes: Option<u64>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { download(&session, &path, &destination, max_bytes).await };
        call(py, "read", work, convert::nothing)
    }

    /// Reads the first bytes of a file.
    fn read_bounded(&self, py: Python<'_>, path: String, max_bytes: u64) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { session.files().read_bounded(&path, max_bytes).await };
        call(py, "read", work, convert::bytes)
    }

    /// Writes a file.
    #[pyo3(signature = (path, data, *, user=None, new=false, mode=None))]
    fn write(
        &self,
        py: Python<'_>,
        path: String,
        data: Source,
        user: Option<String>,
        new: bool,
        mode: Option<u32>,
    ) -> PyResult<Py<PyAny>> {
        let (session, content) = (self.share()?, data.content()?);
        let mut options = WriteOptions::default();
        options.new = new;
        options.mode = mode;
        let work =
            async move { files(&session, user.as_ref()).write_with(&path, content, options).await };
        call(py, "write", work, convert::nothing)
    }

    /// Lists a folder.
    #[pyo3(signature = (path, user=None))]
    fn ls(&self, py: Python<'_>, path: String, user: Option<String>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { files(&session, user.as_ref()).ls(&path).await };
        call(py, "ls", work, convert::listing)
    }

    /// What is known about a path.
    fn stat(&self, py: Python<'_>, path: String) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { session.files().stat(&path).await };
        call(py, "ls", work, convert::file_info)
    }

    /// Makes a folder.
    #[pyo3(signature = (path, *, parents=false, user=None))]
    fn mkdir(
        &self,
        py: Python<'_>,
        path: String,
        parents: bool,
        user: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            let files = files(&session, user.as_ref());
            match parents {
                true => files.mkdir_all(&path).await,
                false => files.mkdir(&path).await,
            }
        };
        call(py, "mkdir", work, convert::nothing)
    }

    /// Removes a file, or a whole tree.
    #[pyo3(signature = (path, *, recursive=false, user=None))]
    fn rm(
        &self,
        py: Python<'_>,
        path: String,
        recursive: bool,
        user: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            let files = files(&session, user.as_ref());
            match recursive {
                true => files.rm_all(&path).await,
                false => files.rm(&path).await,
            }
        };
        call(py, "rm", work, convert::nothing)
    }

    /// Renames a file or link.
    #[pyo3(signature = (source, destination, user=None))]
    fn mv(
        &self,
        py: Python<'_>,
        source: String,
        destination: String,
        user: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { files(&session, user.as_ref()).mv(&source, &destination).await };
        call(py, "mv", work, convert::nothing)
    }

    /// Whether two paths name the same file.
    #[pyo3(signature = (left, right, *, follow=true, user=None))]
    fn same_file(
        &self,
        py: Python<'_>,
        left: String,
        right: String,
        follow: bool,
        user: Option<String>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            let files = files(&session, user.as_ref());
            match follow {
                true => files.same_file(&left, &right).await,
                false => files.same_entry(&left, &right).await,
            }
        };
        call(py, "same_file", work, convert::plain)
    }

    /// Unpacks an archive into the folder it is for.
    #[pyo3(signature = (path, data, *, scheme=None, limits=None))]
    fn extract(
        &self,
        py: Python<'_>,
        path: String,
        data: Source,
        scheme: Option<String>,
        limits: Option<(Option<u64>, Option<u64>, Option<u64>)>,
    ) -> PyResult<Py<PyAny>> {
        let (session, content) = (self.share()?, data.content()?);
        let mut options = ExtractOptions::default();
        options.scheme = scheme;
        options.limits = limits.map(|(max_input_bytes, max_extracted_bytes, max_members)| {
            ArchiveLimits { max_input_bytes, max_extracted_bytes, max_members }
        });
        let work = async move { session.files().extract(&path, content, options).await };
        call(py, "write", work, convert::nothing)
    }

    /// Starts an interactive process.
    #[pyo3(signature = (argv, env, *, user=None, tty=false, yield_time_s=None, max_output_tokens=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn pty_exec_start(
        &self,
        py: Python<'_>,
        argv: Vec<OsString>,
        env: Env,
        user: Option<String>,
        tty: bool,
        yield_time_s: Option<f64>,
        max_output_tokens: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let mut wanted = command(argv, env, user, None);
        if tty {
            wanted = wanted.terminal(TERMINAL.0, TERMINAL.1);
        }
        let limits = PtyLimits { yield_time_s, max_output_tokens };
        let work = async move { session.compat().pty_exec_start(wanted, limits).await };
        call(py, "pty", work, convert::update)
    }

    /// Types on the terminal of an interactive process, or nothing.
    #[pyo3(signature = (session_id, chars, *, yield_time_s=None, max_output_tokens=None))]
    fn pty_write_stdin(
        &self,
        py: Python<'_>,
        session_id: i64,
        chars: String,
        yield_time_s: Option<f64>,
        max_output_tokens: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let limits = PtyLimits { yield_time_s, max_output_tokens };
        let work =
            async move { session.compat().pty_write_stdin(session_id, &chars, limits).await };
        call(py, "pty", work, convert::update)
    }

    /// Ends every interactive process.
    fn pty_terminate_all(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            session.compat().pty_terminate_all().await;
            Ok(())
        };
        call(py, "pty", work, convert::nothing)
    }

    /// Where a declared port is reached.
    fn resolve_exposed_port(&self, py: Python<'_>, port: u16) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { session.compat().resolve_exposed_port(port).await };
        call(py, "resolve_exposed_port", work, convert::port)
    }

    /// Publishes a port on the host's loopback.
    fn expose(&self, py: Python<'_>, port: u16) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move { session.expose(port).await };
        call(py, "resolve_exposed_port", work, convert::port)
    }

    /// Lays out entries of a manifest.
    fn apply(&self, py: Python<'_>, items: Vec<Item>, base_dir: PathBuf) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let manifest = manifest_entries::manifest(items)
            .map_err(|error| errors::raise(py, &error, "start"))?;
        let work = async move { session.compat().apply_entries(&manifest, &base_dir).await };
        call(py, "start", work, convert::materialized)
    }

    /// Mounts what the manifest it was made with names.
    fn mount(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        call(py, "start", async move { session.compat().mount().await }, convert::nothing)
    }

    /// Makes users, and groups with the users in them.
    fn provision(
        &self,
        py: Python<'_>,
        users: Vec<String>,
        groups: Vec<(String, Vec<String>)>,
    ) -> PyResult<Py<PyAny>> {
        use bastide::model::Manifest;
        use bastide::model::users::{Group, User};
        let session = self.share()?;
        let manifest = Manifest {
            users: users.into_iter().map(User::new).collect(),
            groups: groups
                .into_iter()
                .map(|(name, users)| Group {
                    name,
                    users: users.into_iter().map(User::new).collect(),
                })
                .collect(),
            ..Manifest::default()
        };
        let work = async move { session.compat().provision_accounts(&manifest).await };
        call(py, "start", work, convert::nothing)
    }

    /// Whether the guest answers.
    fn answers(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            let root = session.root().as_str();
            Ok(session.files().stat(root).await.is_ok())
        };
        call(py, "running", work, convert::plain)
    }

    /// The workspace as a tar archive: the descriptor of a file without a name, and its hash.
    fn persist(&self, py: Python<'_>, skip: Vec<String>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        let work = async move {
            let compat = session.compat();
            compat.set_persist_workspace_skip_paths(&skip)?;
            let archive = compat.persist_workspace().await?;
            let sha256 = archive.sha256().to_owned();
            let file = archive.into_file().map_err(|error| {
                Error::new(ErrorKind::Io, format!("cannot read the archive: {error}"))
            })?;
            Ok((file, sha256))
        };
        call(py, "persist_workspace", work, |py, (file, sha256)| {
            (file.into_raw_fd(), sha256).into_py_any(py)
        })
    }

    /// Unpacks a tar archive over the workspace, by the reference's rules.
    fn hydrate(&self, py: Python<'_>, data: Source) -> PyResult<Py<PyAny>> {
        let (session, content) = (self.share()?, data.content()?);
        let work = async move { session.compat().hydrate_workspace(content).await };
        call(py, "hydrate_workspace", work, convert::nothing)
    }

    /// Makes the workspace what a tar archive says.
    fn restore(&self, py: Python<'_>, data: Source) -> PyResult<Py<PyAny>> {
        let (session, content) = (self.share()?, data.content()?);
        let work = async move { session.compat().restore_workspace(content).await };
        call(py, "hydrate_workspace", work, convert::nothing)
    }

    /// Has it live on without this process.
    fn detach(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        call(py, "detach", async move { session.detach().await }, convert::nothing)
    }

    /// Ends every process and the machine; its files stay.
    fn shutdown(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let session = self.share()?;
        call(py, "shutdown", async move { session.shutdown().await }, convert::nothing)
    }
}
