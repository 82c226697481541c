//! Meeting the first process of a container: it is started, says that it is there, and receives what the
//! session is.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bastide::backend::Duplex;
use bastide::compat::raise;
use bastide::host::process_identity::ProcessIdentity;
use bastide::{Error, ErrorKind, Result};
use bastide_proto::boot::{Resolver, ResourceLimits};
use bastide_proto::container::{ContainerReady, ContainerReport, ContainerSpec, MAX_SPEC};
use bastide_proto::hello::Token;
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use bollard::query_parameters::StartContainerOptions;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

use crate::boot::{Boot, inspect};
use crate::engine::LARGE;
use crate::grants::HostGrant;
use crate::state::Transport;
use crate::warden::Warden;
use crate::{egress, socket};

/// How long the guest may take to call, once its container was started.
const ARRIVAL: Duration = Duration::from_secs(30);

/// How long the guest may keep silent before its container is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// How long the guest may take to start what it starts.
const REPORT: Duration = Duration::from_secs(20);

/// How the guest names the step that makes the workspace.
const WORKSPACE: &str = "make the workspace ";

impl Boot<'_> {
    pub(crate) async fn start(&self, container: &str) -> Result<()> {
        let docker = &self.engine.docker;
        let start = docker.start_container(container, None::<StartContainerOptions>);
        self.engine.ask(LARGE, "start the container", start).await
    }

    /// Starts a container and waits for the call of its first process, which is handed the socket it
    /// called with the beginning of the message; the rest is still to be said.
    pub(crate) async fn rendezvous<'a>(
        &self,
        warden: &mut Warden,
        container: &str,
        run: &Path,
        message: &'a [u8],
    ) -> Result<(Box<dyn Duplex>, &'a [u8])> {
        let listener = socket::listen(run).map_err(|error| self.failed(&error))?;
        self.start(container).await?;
        let stream = self.accept_guest(container, &listener).await?;
        if self.egress.is_some() {
            // Before it hears a word: nothing of the session runs in there.
            warden.make_network(&self.process_of(&stream)?).await?;
        }
        let handed = async {
            socket::close_folder(run)?;
            socket::send_socket(&stream, &listener, message).await
        };
        let sent = handed.await.map_err(|error| self.failed(&error))?;
        Ok((Box::new(stream), message.get(sent..).unwrap_or_default()))
    }

    /// The process that called, as a descriptor.
    fn process_of(&self, stream: &UnixStream) -> Result<OwnedFd> {
        let called = socket::peer(stream).map_err(|error| self.failed(&error))?;
        let pid = called.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        // An engine in another namespace of processes has none that could be joined.
        let pid = pid.ok_or_else(egress::elsewhere)?;
        pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| self.failed(&errno.into()))
    }

    /// Waits until the guest calls, or its container has ended.
    async fn accept_guest(&self, container: &str, listener: &UnixListener) -> Result<UnixStream> {
        let deadline = Instant::now() + ARRIVAL;
        loop {
            if let Ok(called) = tokio::time::timeout(LOOK, listener.accept()).await {
                return called.map(|(stream, _)| stream).map_err(|error| self.failed(&error));
            }
            let found = inspect(&self.engine, container).await?;
            let state = found.and_then(|found| found.state).unwrap_or_default();
            if state.running != Some(true) || Instant::now() >= deadline {
                let code = state.exit_code.unwrap_or_default();
                let why = state.error.unwrap_or_default();
                let message = format!("the guest did not start in the container: {code} {why}");
                return Err(Error::new(ErrorKind::BackendLost, message.trim_end()));
            }
        }
    }

    /// What the first process is told.
    pub(crate) fn message(
        &self,
        token: &Token,
        transport: Transport,
        disk_by_driver: bool,
    ) -> io::Result<Vec<u8>> {
        let spec = self.container_spec(token, transport, disk_by_driver);
        bastide_proto::encode_prefixed(&spec).map_err(io::Error::other)
    }

    /// Tells the first process the rest of what the session is, and hears what became of it.
    pub(crate) async fn exchange(
        &self,
        stream: &mut Box<dyn Duplex>,
        rest: &[u8],
    ) -> Result<ContainerReady> {
        let exchange = async {
            stream.write_all(rest).await?;
            stream.flush().await?;
            let mut prefix = [0; LENGTH_BYTES];
            stream.read_exact(&mut prefix).await?;
            let length = prefixed_length(prefix, MAX_SPEC).ok_or(io::ErrorKind::InvalidData)?;
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await?;
            bastide_proto::decode::<ContainerReport>(&body).map_err(io::Error::other)
        };
        let lost = |why: String| {
            let message = format!("the guest of session {} {why}", self.folder.id());
            Error::new(ErrorKind::AgentLost, message)
        };
        match tokio::time::timeout(REPORT, exchange).await {
            Ok(Ok(ContainerReport::Up(up))) => Ok(up),
            Ok(Ok(ContainerReport::Failed(failure))) => {
                let system = io::Error::from_raw_os_error(failure.errno);
                let message = format!("cannot {}: {system}", failure.step);
                if failure.step.starts_with(WORKSPACE) {
                    // A root that is a file, or lies below one: the reference's client runs this there.
                    let command = ["mkdir", "-p", self.spec.root.as_str()];
                    return Err(raise::exec_nonzero(command, 1, Vec::new(), message));
                }
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Ok(Err(error)) => Err(lost(format!("did not start: {error}"))),
            Err(_) => Err(lost("did not start in time".to_owned())),
        }
    }

    fn container_spec(
        &self,
        token: &Token,
        transport: Transport,
        disk_by_driver: bool,
    ) -> ContainerSpec {
        let grants = |read_only: bool| {
            let kept = self.spec.grants.iter().filter(move |grant| grant.read_only == read_only);
            kept.map(|grant| grant.path.as_str().to_owned())
        };
        let root = self.spec.root.as_str().to_owned();
        let limits = &self.spec.limits;
        ContainerSpec {
            token: token.0,
            user: self.image.user.clone(),
            limits: ResourceLimits {
                memory: None,
                pids: None,
                cpu_millis: limits.cpu_millis,
                disk: limits.disk.filter(|_| !disk_by_driver),
            },
            writable: std::iter::once(root).chain(grants(false)).collect(),
            readable: grants(true).collect(),
            // Files of another kernel have numbers of their own there.
            identities: match transport {
                Transport::Socket => {
                    let known = |grant: &HostGrant| (grant.target.clone(), grant.identity);
                    self.grants.iter().map(known).collect()
                }
                Transport::Dial => Vec::new(),
            },
            writes_to_host: self.writes_to_host(),
            resolver: Resolver::default(),
            filtered: !self.options.seccomp_unconfined,
            new_privileges: self.options.new_privileges,
            mounts: self.storage.inside.is_some(),
        }
    }

    /// The process that listens now: the guest.
    pub(crate) async fn find_guest(&self, run: &Path) -> io::Result<Option<ProcessIdentity>> {
        let pid = socket::peer(&socket::connect(run).await?)?;
        pid.map(ProcessIdentity::of).transpose()
    }
}
