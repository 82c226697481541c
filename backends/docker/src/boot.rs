//! Bringing a container up.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::Path;
use std::time::Duration;

use bastide::backend::{Duplex, Leash, Remains};
use bastide::host::process::ProcessIdentity;
use bastide::{
    Booted, Connection, Error, ErrorKind, Machine, MachineSpec, NetworkAccess, Result,
    SessionFolder,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{Limits, Resolver};
use bastide_proto::container::{
    ContainerReport, ContainerSpec, ContainerUp, ContainerWardenSpec, MAX_SPEC,
};
use bastide_proto::hello::Token;
use bastide_proto::warden::{END_NAME, GUEST_NAME};
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, StartContainerOptions,
    StopContainerOptionsBuilder,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::Instant;

use crate::backend::NAME;
use crate::container::Plan;
use crate::dial::dial;
use crate::engine::{Engine, LARGE, SMALL, status};
use crate::image::Image;
use crate::own::{Home, find, remove};
use crate::receipt::{About, receipt};
use crate::state::{State, Transport, container_name, make_token, run_dir, workspace_volume};
use crate::storage::Storage;
use crate::warden::Warden;
use crate::{DockerOptions, entry, socket};

/// How long the guest may take to listen, once its container was started.
const ARRIVAL: Duration = Duration::from_secs(30);

/// How long the guest may take to start what it starts.
const REPORT: Duration = Duration::from_secs(20);

/// How long to wait before looking again for the guest's socket.
const AGAIN: Duration = Duration::from_millis(2);

/// After how many looks for the socket the container itself is looked at.
const LOOKS: u32 = 50;

/// How long a name may still be taken by a container that is being removed.
const NAME_FREE: Duration = Duration::from_secs(15);

/// Everything a boot needs.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) engine: Engine,
    pub(crate) about: About,
    pub(crate) guest: &'a GuestBinary,
    pub(crate) home: &'a Home,
    pub(crate) folder: &'a SessionFolder,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) options: DockerOptions,
    pub(crate) image: Image,
    pub(crate) storage: Storage,
    /// Whether the session was there before.
    pub(crate) was_there: bool,
}

/// A container that was made or found.
struct Made {
    container: String,
    disk_by_driver: bool,
    is_new: bool,
}

/// A container that answers.
struct Up {
    container: String,
    report: ContainerUp,
    stream: Box<dyn Duplex>,
    guest: Option<ProcessIdentity>,
    disk_by_driver: bool,
    /// Whether it was made now.
    is_new: bool,
}

impl Boot<'_> {
    /// Brings the container of a session up.
    pub(crate) async fn run(self) -> Result<Booted> {
        if self.was_there {
            // A container of that name which is another home's is not touched, also not by a warden.
            find(&self.engine, self.home, self.folder.id()).await?;
        }
        let token = make_token(self.folder.path()).map_err(|error| self.failed(&error))?;
        forget_end(self.folder.path()).map_err(|error| self.failed(&error))?;
        match self.transport() {
            Transport::Socket => match self.with_warden(&token).await {
                Err(error) if is_elsewhere(&error) => self.without_warden(&token).await,
                booted => booted,
            },
            Transport::Dial => self.without_warden(&token).await,
        }
    }

    /// How the guest can be reached, as far as can be told before trying.
    fn transport(&self) -> Transport {
        // Ids of a shifted container may not enter a folder that is only ours, and what is no Linux
        // kernel has no sockets of one.
        let foreign = self.about.user_namespace || is_own_kernel(self.options.runtime.as_deref());
        match self.engine.address.socket() {
            Some(_) if !foreign => Transport::Socket,
            _ => Transport::Dial,
        }
    }

    /// With a folder shared with the container, and a warden beside it.
    async fn with_warden(&self, token: &Token) -> Result<Booted> {
        let dir = self.folder.path();
        let run = run_dir(dir);
        self.make_run_dir(&run).map_err(|error| self.failed(&error))?;
        let warden = Warden::start(self.guest, self.folder, &self.warden_spec(token, &run)).await;
        let warden = warden.map_err(|error| self.failed(&error))?;
        let identity = warden.identity.clone();
        match self.bring_up(Transport::Socket, token, &run).await {
            Ok(up) => {
                let leash = warden.watch().await;
                let leash = leash.map_err(|error| self.failed(&error))?;
                self.booted(Transport::Socket, up, token, Some(identity), Some(leash))
            }
            Err(error) => {
                self.undo().await;
                warden.dismiss().await;
                Err(error)
            }
        }
    }

    /// With volumes of the engine alone.
    async fn without_warden(&self, token: &Token) -> Result<Booted> {
        let home = &self.home.identity;
        entry::fill_volume(&self.engine, &self.image.id, self.guest, home).await?;
        match self.bring_up(Transport::Dial, token, Path::new("")).await {
            Ok(up) => self.booted(Transport::Dial, up, token, None, None),
            Err(error) => {
                self.undo().await;
                Err(error)
            }
        }
    }

    async fn bring_up(&self, transport: Transport, token: &Token, run: &Path) -> Result<Up> {
        let Made { container, disk_by_driver, is_new } = self.make(transport, run).await?;
        if transport == Transport::Socket && !entry::is_known(&self.home.path, &self.about.id) {
            let proof = entry::leave_proof(run).map_err(|error| self.failed(&error))?;
            if !entry::is_shared(&self.engine, &container, &proof).await? {
                return Err(elsewhere());
            }
            entry::remove_proof(run);
            entry::remember(&self.home.path, &self.about.id);
        }
        let docker = &self.engine.docker;
        let start = docker.start_container(&container, None::<StartContainerOptions>);
        self.engine.ask(LARGE, "start the container", start).await?;
        let mut stream: Box<dyn Duplex> = match transport {
            Transport::Socket => Box::new(self.arrival(&container, run).await?),
            Transport::Dial => dial(&self.engine, &container).await?,
        };
        let report = self.exchange(&mut stream, token, disk_by_driver).await?;
        let guest = match transport {
            Transport::Socket => self.find_guest(run).await.map_err(|error| self.failed(&error))?,
            Transport::Dial => None,
        };
        Ok(Up { container, report, stream, guest, disk_by_driver, is_new })
    }

    fn plan<'a>(&'a self, transport: Transport, run: &'a Path) -> Plan<'a> {
        Plan {
            id: self.folder.id(),
            home: &self.home.identity,
            home_path: &self.home.path,
            spec: self.spec,
            options: &self.options,
            image: &self.image,
            storage: &self.storage,
            transport,
            guest: self.guest.path(),
            run,
            limits_swap: self.about.limits_swap,
            limits_disk: true,
        }
    }

    /// Makes the container, or finds the one the session had. One that is gone is replaced; what was
    /// saved of the session is then all there is.
    async fn make(&self, transport: Transport, run: &Path) -> Result<Made> {
        let plan = self.plan(transport, run);
        if self.was_there
            && let Some(found) = self.find().await?
        {
            plan.check_reuse(&found)?;
            self.stop().await?;
            let driver = found.host_config.and_then(|host| host.storage_opt);
            let disk_by_driver = driver.is_some_and(|options| options.contains_key("size"));
            let container = found.id.unwrap_or_default();
            return Ok(Made { container, disk_by_driver, is_new: false });
        }
        let wants_disk = self.spec.limits.disk.is_some();
        let made = |container, disk_by_driver| Made { container, disk_by_driver, is_new: true };
        match self.create(&plan).await {
            Ok(id) => Ok(made(id, wants_disk)),
            // Few storage drivers can; then each command is limited instead.
            Err(error) if wants_disk && says_no_quota(&error) => {
                let plan = Plan { limits_disk: false, ..plan };
                Ok(made(self.create(&plan).await?, false))
            }
            Err(error) => Err(error),
        }
    }

    async fn create(&self, plan: &Plan<'_>) -> Result<String> {
        let deadline = Instant::now() + NAME_FREE;
        loop {
            let name = container_name(self.folder.id());
            let options = CreateContainerOptionsBuilder::default().name(&name).build();
            let made = self.engine.docker.create_container(Some(options), plan.body()?);
            match self.engine.ask(LARGE, "make the container", made).await {
                Ok(made) => return Ok(made.id),
                Err(error) if says_no_source(&error) => return Err(elsewhere()),
                // Whoever had the name before is on its way out.
                Err(error) if status(&error) == Some(409) && Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN * 10).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn find(&self) -> Result<Option<ContainerInspectResponse>> {
        inspect(&self.engine, &container_name(self.folder.id())).await
    }

    async fn stop(&self) -> Result<()> {
        stop(&self.engine, &container_name(self.folder.id())).await
    }

    /// Waits until the guest listens, or its container has ended.
    async fn arrival(&self, container: &str, run: &Path) -> Result<UnixStream> {
        let deadline = Instant::now() + ARRIVAL;
        let mut looks = 0;
        loop {
            if let Ok(stream) = socket::connect(run).await {
                return Ok(stream);
            }
            looks += 1;
            if looks % LOOKS == 0 || Instant::now() >= deadline {
                let found = inspect(&self.engine, container).await?;
                let state = found.and_then(|found| found.state).unwrap_or_default();
                if state.running != Some(true) || Instant::now() >= deadline {
                    let code = state.exit_code.unwrap_or_default();
                    let why = state.error.unwrap_or_default();
                    let message = format!("the guest did not start in the container: {code} {why}");
                    return Err(Error::new(ErrorKind::BackendLost, message.trim_end()));
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Tells the first process what the session is, and hears what became of it.
    async fn exchange(
        &self,
        stream: &mut Box<dyn Duplex>,
        token: &Token,
        disk_by_driver: bool,
    ) -> Result<ContainerUp> {
        let spec = self.container_spec(token, disk_by_driver);
        let exchange = async {
            let body = bastide_proto::encode(&spec).map_err(io::Error::other)?;
            let length = u32::try_from(body.len()).map_err(io::Error::other)?;
            stream.write_all(&length.to_le_bytes()).await?;
            stream.write_all(&body).await?;
            stream.flush().await?;
            let length = stream.read_u32_le().await?;
            let length = usize::try_from(length).map_err(io::Error::other)?;
            if length > MAX_SPEC {
                return Err(io::ErrorKind::InvalidData.into());
            }
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
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Ok(Err(error)) => Err(lost(format!("did not start: {error}"))),
            Err(_) => Err(lost("did not start in time".to_owned())),
        }
    }

    fn container_spec(&self, token: &Token, disk_by_driver: bool) -> ContainerSpec {
        let grants = |read_only: bool| {
            let kept = self.spec.grants.iter().filter(move |grant| grant.read_only == read_only);
            kept.map(|grant| grant.path.as_str().to_owned())
        };
        let root = self.spec.root.as_str().to_owned();
        let limits = &self.spec.limits;
        ContainerSpec {
            token: token.0,
            user: self.image.user.clone(),
            limits: Limits {
                memory: None,
                pids: None,
                cpu_millis: limits.cpu_millis,
                disk: limits.disk.filter(|_| !disk_by_driver),
            },
            writable: std::iter::once(root).chain(grants(false)).collect(),
            readable: grants(true).collect(),
            resolver: Resolver::default(),
            filtered: !self.options.seccomp_unconfined,
            new_privileges: self.options.new_privileges,
            mounts: self.storage.inside.is_some(),
        }
    }

    fn warden_spec(&self, token: &Token, run: &Path) -> ContainerWardenSpec {
        let id = self.folder.id();
        let name = container_name(id);
        let own = |method: &str, path: String| (method.to_owned(), path);
        let mut to_remove = vec![own("DELETE", format!("/containers/{name}?force=1&v=1"))];
        if self.options.read_only_root {
            to_remove.push(own("DELETE", format!("/volumes/{}?force=1", workspace_volume(id))));
        }
        for volume in &self.storage.volumes {
            to_remove.push(own("DELETE", format!("/volumes/{}?force=1", volume.source)));
        }
        ContainerWardenSpec {
            session_dir: self.folder.path().to_owned(),
            run_dir: run.to_owned(),
            token: token.0,
            keep_folder: self.was_there || !self.folder.is_new(),
            own_network: self.spec.network != NetworkAccess::Host,
            engine: self.engine.address.socket().map(Path::to_owned).unwrap_or_default(),
            to_stop: vec![own("POST", format!("/containers/{name}/stop?t=1"))],
            to_remove,
        }
    }

    /// The process that listens now: the guest.
    async fn find_guest(&self, run: &Path) -> io::Result<Option<ProcessIdentity>> {
        let pid = socket::peer(&socket::connect(run).await?)?;
        pid.map(ProcessIdentity::of).transpose()
    }

    fn booted(
        &self,
        transport: Transport,
        up: Up,
        token: &Token,
        warden: Option<ProcessIdentity>,
        leash: Option<Leash>,
    ) -> Result<Booted> {
        let state = State {
            dir: self.folder.path().to_owned(),
            engine: self.engine.address.clone(),
            container: up.container,
            image: self.options.image.clone(),
            labels: self.options.labels.clone(),
            root: self.image.folder.clone().filter(|folder| *folder == self.spec.root),
            volumes: self.storage.names(),
            transport,
            guest: up.guest,
            warden,
            daemon: daemon_of(&self.engine),
        };
        let state = serde_json::to_value(state).map_err(|error| self.failed(&error.into()))?;
        let receipt = receipt(&self.about, self.spec, &self.options, &up.report, up.disk_by_driver);
        let mut receipt = receipt;
        receipt.not_enforced.extend(self.storage.open());
        let machine = Machine {
            id: self.folder.id().clone(),
            backend: NAME.to_owned(),
            state,
            receipt,
            environment: self.image.environment.clone(),
        };
        let connection =
            Connection { stream: up.stream, token: token.clone(), side: None, greeted: false };
        let remains = if up.is_new { Remains::Nothing } else { Remains::System };
        Ok(Booted { machine, connection: Some(connection), leash, remains })
    }

    /// Clears away what a failed boot left; a container that was there before is only stopped. The first
    /// failure is the one to tell.
    async fn undo(&self) {
        if self.was_there || !self.folder.is_new() {
            if let Ok(Some(container)) = find(&self.engine, self.home, self.folder.id()).await {
                drop(stop(&self.engine, &container).await);
            }
        } else {
            let volumes = self.storage.names();
            drop(remove(&self.engine, self.home, self.folder.id(), &volumes).await);
        }
    }

    /// A fresh folder to share. What was in the one before may be anything.
    fn make_run_dir(&self, run: &Path) -> io::Result<()> {
        if run.symlink_metadata().is_ok() && !is_cleared(run) {
            // It goes with the session's folder.
            let free = |number: &u32| !run.with_extension(number.to_string()).exists();
            let number = (0..).find(free).unwrap_or_default();
            fs::rename(run, run.with_extension(number.to_string()))?;
        }
        fs::DirBuilder::new().mode(0o700).create(run)?;
        if let Ok(Some((user, group))) = self.options.only_ids() {
            chown(run, Some(user), Some(group))?;
        }
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Error {
        let (id, dir) = (self.folder.id(), self.folder.path());
        Error::new(ErrorKind::Io, format!("cannot start session {id}: {error}"))
            .with("path", dir.display().to_string())
    }
}

/// Removes a folder that was shared, if there is nothing in it but what our guest makes.
fn is_cleared(run: &Path) -> bool {
    // What is there besides, or is something else by now, is found by the last step.
    drop(fs::remove_file(run.join(GUEST_NAME)));
    drop(fs::remove_dir(run.join("logs")));
    fs::remove_dir(run).is_ok()
}

/// The daemon's process, where this host can see it.
pub(crate) fn daemon_of(engine: &Engine) -> Option<ProcessIdentity> {
    let socket = std::os::unix::net::UnixStream::connect(engine.address.socket()?).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&socket).ok()?.pid;
    ProcessIdentity::of(pid.as_raw_pid().unsigned_abs()).ok()
}

/// What an engine knows about a container; `None` if there is none.
pub(crate) async fn inspect(
    engine: &Engine,
    container: &str,
) -> Result<Option<ContainerInspectResponse>> {
    let asked = engine.docker.inspect_container(container, None::<InspectContainerOptions>);
    match engine.ask(SMALL, "look at the container", asked).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if status(&error) == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends every process of a container; one that is stopped or missing is what is wanted.
pub(crate) async fn stop(engine: &Engine, container: &str) -> Result<()> {
    let options = StopContainerOptionsBuilder::default().t(1).build();
    let asked = engine.docker.stop_container(container, Some(options));
    match engine.ask(LARGE, "stop the container", asked).await {
        Err(error) if !matches!(status(&error), Some(304 | 404)) => Err(error),
        _ => Ok(()),
    }
}

/// The engine does not see this host's files.
fn elsewhere() -> Error {
    Error::new(ErrorKind::Unsupported, "the Docker daemon does not share this host's files")
        .with("elsewhere", true)
}

fn is_elsewhere(error: &Error) -> bool {
    error.context().contains_key("elsewhere")
}

fn says_no_source(error: &Error) -> bool {
    error.message().contains("bind source path does not exist")
}

fn says_no_quota(error: &Error) -> bool {
    let text = error.message().to_lowercase();
    ["storage-opt", "storage opt", "quota", "pquota"].iter().any(|word| text.contains(word))
}

/// Whether a runtime brings a kernel of its own, with which no socket is shared.
fn is_own_kernel(runtime: Option<&str>) -> bool {
    runtime.is_some_and(|name| name.contains("runsc") || name.contains("kata"))
}

/// A note of how the session ended before is no news any more.
fn forget_end(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END_NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
