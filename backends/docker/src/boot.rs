//! Bringing a container up.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use bastide::backend::{Duplex, KeepAlive, Retained};
use bastide::host::egress::trust_variables;
use bastide::host::process_identity::ProcessIdentity;
use bastide::host::token;
use bastide::{
    Booted, Condition, Error, ErrorKind, Machine, MachineSpec, NetworkAccess, Result, SessionFolder,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::container::{ContainerReady, ContainerWardenSpec};
use bastide_proto::hello::Token;
use bastide_proto::mounts::KeeperSpec;
use bastide_proto::warden::{END_FILE, GUEST_SOCKET};
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, StopContainerOptionsBuilder,
};
use tokio::time::Instant;

use crate::backend::NAME;
use crate::container::{Plan, hostname, transport_of};
use crate::dial::{dial, direct, resumable_boot};
use crate::egress::EgressSetup;
use crate::engine::{Engine, LARGE, SMALL};
use crate::grants::{HostGrant, mount_points};
use crate::image::Image;
use crate::ownership::{HomeLabel, find, remove};
use crate::receipt::{EngineInfo, receipt};
use crate::state::{State, Transport, container_name, run_dir, store_user, workspace_volume};
use crate::storage::Storage;
use crate::warden::Warden;
use crate::{DockerOptions, egress, guest_install, mounts};

/// How long to wait before trying a name again.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a name may still be taken by a container that is being removed.
const NAME_FREE: Duration = Duration::from_secs(15);

/// Everything a boot needs.
#[derive(Debug)]
pub(crate) struct Boot<'a> {
    pub(crate) engine: Engine,
    pub(crate) about: EngineInfo,
    pub(crate) guest: &'a GuestBinary,
    pub(crate) home: &'a HomeLabel,
    pub(crate) folder: &'a SessionFolder,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) options: DockerOptions,
    pub(crate) image: Image,
    pub(crate) storage: Storage,
    pub(crate) grants: Vec<HostGrant>,
    /// What the warden is handed for a network with a policy.
    pub(crate) egress: Option<EgressSetup>,
    /// Whether the session was there before.
    pub(crate) was_there: bool,
}

/// A container that was made or found.
struct MadeContainer {
    container: String,
    disk_by_driver: bool,
    is_new: bool,
}

/// A container that answers.
struct RunningContainer {
    container: String,
    report: ContainerReady,
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
        let token = token::load_or_make(self.folder.path()).map_err(|error| self.failed(&error))?;
        forget_end(self.folder.path()).map_err(|error| self.failed(&error))?;
        match self.transport().await? {
            Transport::Socket => match self.with_warden(&token).await {
                Err(error) if is_elsewhere(&error) => self.without_warden(&token).await,
                booted => booted,
            },
            Transport::Dial => self.without_warden(&token).await,
        }
    }

    /// How the guest can be reached, as far as can be told before trying. A container that is there is
    /// reached as it was made to be.
    async fn transport(&self) -> Result<Transport> {
        if self.was_there
            && let Some(found) = self.find().await?
        {
            return Ok(transport_of(&found));
        }
        // Ids of a shifted container may not enter a folder that is only ours, and what is no Linux
        // kernel has no sockets of one.
        let foreign = self.about.user_namespace || is_own_kernel(self.options.runtime.as_deref());
        Ok(match self.engine.address.socket() {
            Some(_) if !foreign => Transport::Socket,
            _ => Transport::Dial,
        })
    }

    /// With a folder shared with the container, and a warden beside it.
    async fn with_warden(&self, token: &Token) -> Result<Booted> {
        let dir = self.folder.path();
        let run = run_dir(dir);
        Self::make_run_dir(&run).map_err(|error| self.failed(&error))?;
        if self.egress.is_some() {
            make_shown(&egress::trust_dir(&run)).map_err(|error| self.failed(&error))?;
        }
        let spec = self.warden_spec(token, &run);
        let warden = Warden::start(self.guest, self.folder, &spec, self.egress.as_ref()).await;
        let mut warden = warden.map_err(|error| self.failed(&error))?;
        let identity = warden.identity.clone();
        match self.start_guest(Some(&mut warden), token, &run).await {
            Ok(up) => {
                let noted = store_user(dir, up.report.user);
                noted.map_err(|error| self.failed(&error))?;
                let keep_alive = warden.watch().await;
                let keep_alive = keep_alive.map_err(|error| self.failed(&error))?;
                self.booted(Transport::Socket, up, token, Some(identity), Some(keep_alive))
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
        if self.storage.by_host {
            return Err(mounts::elsewhere());
        }
        if self.egress.is_some() {
            return Err(egress::elsewhere());
        }
        let home = &self.home.identity;
        guest_install::fill_volume(&self.engine, &self.image.id, self.guest, home).await?;
        let boot = async {
            let up = self.start_guest(None, token, Path::new("")).await?;
            let container = up.container.clone();
            let booted = self.booted(Transport::Dial, up, token, None, None)?;
            resumable_boot(booted, &self.engine, &container).await
        };
        let booted = boot.await;
        if booted.is_err() {
            self.undo().await;
        }
        booted
    }

    /// Starts what there is to start in a container: with a warden beside it by a shared folder, else by `dial`.
    async fn start_guest(
        &self,
        warden: Option<&mut Warden>,
        token: &Token,
        run: &Path,
    ) -> Result<RunningContainer> {
        let transport = if warden.is_some() { Transport::Socket } else { Transport::Dial };
        let MadeContainer { container, disk_by_driver, is_new } = self.make(transport, run).await?;
        if transport == Transport::Socket
            && !guest_install::is_known(&self.home.path, &self.about.id)
        {
            let proof = guest_install::leave_proof(run).map_err(|error| self.failed(&error))?;
            if !guest_install::is_shared(&self.engine, &container, &proof).await? {
                if is_new {
                    // Another takes its place and its name.
                    remove(&self.engine, self.home, self.folder.id(), &[]).await?;
                }
                return Err(elsewhere());
            }
            guest_install::remove_proof(run);
            guest_install::remember(&self.home.path, &self.about.id);
        }
        let message = self.message(token, transport, disk_by_driver);
        let message = message.map_err(|error| self.failed(&error))?;
        let (mut stream, rest) = match warden {
            Some(warden) => self.rendezvous(warden, &container, run, &message).await?,
            None => {
                self.start(&container).await?;
                (dial(&self.engine, &container).await?, &message[..])
            }
        };
        let report = self.exchange(&mut stream, rest).await?;
        let guest = match transport {
            Transport::Socket => self.find_guest(run).await.map_err(|error| self.failed(&error))?,
            Transport::Dial => None,
        };
        Ok(RunningContainer { container, report, stream, guest, disk_by_driver, is_new })
    }

    /// Whether commands can write to a folder of the host.
    pub(crate) fn writes_to_host(&self) -> bool {
        self.grants.iter().any(|grant| !grant.read_only)
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
            grants: &self.grants,
            transport,
            guest: self.guest.path(),
            run,
            limits_swap: self.about.limits_swap,
            limits_disk: true,
        }
    }

    /// Makes the container, or finds the one the session had. One that is gone is replaced; what was
    /// saved of the session is then all there is.
    async fn make(&self, transport: Transport, run: &Path) -> Result<MadeContainer> {
        let plan = self.plan(transport, run);
        if self.was_there
            && let Some(found) = self.find().await?
        {
            plan.check_reuse(&found)?;
            self.stop().await?;
            let driver = found.host_config.and_then(|host| host.storage_opt);
            let disk_by_driver = driver.is_some_and(|options| options.contains_key("size"));
            let container = found.id.unwrap_or_default();
            return Ok(MadeContainer { container, disk_by_driver, is_new: false });
        }
        let wants_disk = self.spec.limits.disk.is_some();
        let made =
            |container, disk_by_driver| MadeContainer { container, disk_by_driver, is_new: true };
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
                Err(error) if error.status() == Some(409) && Instant::now() < deadline => {
                    tokio::time::sleep(AGAIN).await;
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
            mount_points: mount_points(&self.grants),
            protocol: self.protocol(self.was_there),
            egress: egress::boot(&self.home.path, id, self.spec, run),
            keeper: rustix::process::geteuid().is_root().then(|| KeeperSpec {
                session_dir: self.folder.path().to_owned(),
                workspace: self.spec.root.as_str().to_owned(),
                inside: None,
                disk: self.spec.limits.disk,
            }),
        }
    }

    fn booted(
        &self,
        transport: Transport,
        up: RunningContainer,
        token: &Token,
        warden: Option<ProcessIdentity>,
        keep_alive: Option<KeepAlive>,
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
        let mut receipt =
            receipt(&self.about, self.spec, &self.options, &up.report, up.disk_by_driver);
        if self.writes_to_host() {
            let what = "set-id programs and file capabilities in folders of the host";
            match up.report.filtered {
                true => receipt.walls.push(format!("no {what}")),
                false => receipt
                    .not_enforced
                    .push(format!("{what}: nothing keeps root from making them")),
            }
        }
        receipt.not_enforced.extend(self.storage.open());
        let machine = Machine {
            id: self.folder.id().clone(),
            backend: NAME.to_owned(),
            state,
            receipt,
            environment: self.environment(),
            protocol: self.protocol(!up.is_new),
        };
        let connection = direct(up.stream, token.clone());
        let retained = if up.is_new { Retained::Nothing } else { Retained::System };
        Ok(Booted { machine, connection: Some(connection), keep_alive, retained })
    }

    /// The version of the protocol that the guest speaks: a container that is started again has the guest it was made with.
    fn protocol(&self, is_its: bool) -> u32 {
        let before = self.spec.before.as_ref().filter(|_| is_its);
        before.map_or(bastide_proto::VERSION, |machine| machine.protocol)
    }

    /// What commands start with: what engines set, and what the image says, which counts more.
    fn environment(&self) -> Vec<(String, String)> {
        let mut all = self.image.environment.clone();
        if !all.iter().any(|(key, _)| key == "HOSTNAME") {
            all.push(("HOSTNAME".to_owned(), hostname(self.folder.id())));
        }
        // The image knows nothing of the session's authority.
        let trust = trust_variables(self.spec, &egress::bundle_inside());
        all.retain(|(key, _)| !trust.iter().any(|(own, _)| own == key));
        all.extend(trust);
        all
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
    fn make_run_dir(run: &Path) -> io::Result<()> {
        if run.symlink_metadata().is_ok() && !is_cleared(run) {
            // It goes with the session's folder.
            let free = |number: &u32| !run.with_extension(number.to_string()).exists();
            let number = (0..).find(free).unwrap_or_default();
            fs::rename(run, run.with_extension(number.to_string()))?;
        }
        fs::DirBuilder::new().mode(0o700).create(run)
    }

    pub(crate) fn failed(&self, error: &io::Error) -> Error {
        let (id, dir) = (self.folder.id(), self.folder.path());
        let message = format!("cannot start session {id} in {}: {error}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    }
}

/// Makes a folder that everybody inside may look into, unless it is there.
fn make_shown(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Whatever the mask of whoever makes the session.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
}

/// Removes a folder that was shared, if there is nothing in it but what our guest makes.
fn is_cleared(run: &Path) -> bool {
    // What is there besides, or is something else by now, is found by the last step.
    drop(fs::remove_file(run.join(GUEST_SOCKET)));
    fs::remove_dir(run).is_ok()
}

/// The daemon's process, where this host can see it.
pub(crate) fn daemon_of(engine: &Engine) -> Option<ProcessIdentity> {
    let socket = std::os::unix::net::UnixStream::connect(engine.address.socket()?).ok()?;
    socket.set_nonblocking(true).ok()?;
    // One that this host cannot see has the number 0.
    let pid = tokio::net::UnixStream::from_std(socket).ok()?.peer_cred().ok()?.pid()?;
    ProcessIdentity::of(u32::try_from(pid).ok().filter(|pid| *pid > 0)?).ok()
}

/// What an engine knows about a container; `None` if there is none.
pub(crate) async fn inspect(
    engine: &Engine,
    container: &str,
) -> Result<Option<ContainerInspectResponse>> {
    let call = engine.docker.inspect_container(container, None::<InspectContainerOptions>);
    match engine.ask(SMALL, "look at the container", call).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends every process of a container; one that is stopped or missing is what is wanted.
pub(crate) async fn stop(engine: &Engine, container: &str) -> Result<()> {
    let options = StopContainerOptionsBuilder::default().t(1).build();
    let call = engine.docker.stop_container(container, Some(options));
    match engine.ask(LARGE, "stop the container", call).await {
        Err(error) if !matches!(error.status(), Some(304 | 404)) => Err(error),
        _ => Ok(()),
    }
}

/// The engine does not see this host's files.
fn elsewhere() -> Error {
    Error::new(ErrorKind::Unsupported, "the Docker daemon does not share this host's files")
        .with_condition(Condition::EngineElsewhere)
        .with_context("elsewhere", true)
}

fn is_elsewhere(error: &Error) -> bool {
    error.condition() == Some(&Condition::EngineElsewhere)
}

fn says_no_source(error: &Error) -> bool {
    error.message().contains("bind source path does not exist")
}

fn says_no_quota(error: &Error) -> bool {
    let text = error.message().to_lowercase();
    ["storage-opt", "storage opt", "quota", "pquota"].iter().any(|word| text.contains(word))
}

/// Whether a runtime brings a kernel of its own, with which no socket is shared.
pub(crate) fn is_own_kernel(runtime: Option<&str>) -> bool {
    runtime.is_some_and(|name| name.contains("runsc") || name.contains("kata"))
}

/// A note of how the session ended before is no news any more.
fn forget_end(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
