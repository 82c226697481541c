//! What a backend does, done by an engine.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{EgressNetworks, Expose, HostMounts, LeaseState, LeaseUpdate, Leases};
use bastide::host::process_identity::{ProcessIdentity, ended};
use bastide::host::{make_private, not_connected, remove_folder, session_of_folder, token};
use bastide::model::manifest::DEFAULT_ROOT;
use bastide::model::state::{BackendState, NetworkMode};
use bastide::warden_client::{self, EndMode};
use bastide::{
    Backend, Booted, Condition, Connection, Error, ErrorKind, Isolation, Machine, MachineExit,
    MachineSpec, MachineStatus, NetworkAccess, Orphans, Result, Rung, SessionFolder, SweepMode,
};
use bastide_guest_bin::{GuestBinary, InstalledProgram};
use bastide_proto::GuestPath;
use bastide_proto::warden::WardenRequest;
use bastide_sidecar_bin::Sidecar;

use crate::boot::{Boot, inspect, stop};
use crate::dial::{connection, dial, direct};
use crate::end::{engine_exit, noted_exit};
use crate::engine::{Engine, is_unreachable};
use crate::engines::Engines;
use crate::grants::{check_grants, host_grants};
use crate::image::Image;
use crate::ownership::{COPIED, HomeLabel, copied, own_state, remove};
use crate::receipt::EngineInfo;
use crate::state::{State, Transport, load_engine, run_dir, state_of, store_engine};
use crate::storage::Storage;
use crate::{DockerOptions, EngineAddress, egress, guest_install, image, network, socket, sweep};

/// The word users choose this backend by.
pub(crate) const NAME: &str = "docker";

/// The folder of programs in a home.
pub(crate) const GUESTS: &str = "guests";

/// How long a warden may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long the engine may take to remove a container, asked by a warden.
const REMOVAL: Duration = Duration::from_secs(120);

type Report = Box<dyn Fn(&str) + Send + Sync>;

/// Runs sessions in containers.
pub struct DockerBackend {
    home: PathBuf,
    guest: GuestBinary,
    pub(crate) address: EngineAddress,
    pub(crate) options: DockerOptions,
    progress: Option<Report>,
    engines: Engines,
    /// Put into the home with the first store that is mounted from outside, or network with a policy.
    sidecar: Sidecar,
}

impl DockerBackend {
    /// A backend that keeps its sessions in the folder `home`, and creates new ones on the engine
    /// at `address` with `options`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written to.
    pub fn new(
        home: impl Into<PathBuf>,
        address: EngineAddress,
        options: DockerOptions,
    ) -> Result<Self> {
        let home = home.into();
        let failed = |error: io::Error| {
            let message = format!("cannot keep sessions in {}: {error}", home.display());
            Error::new(ErrorKind::Io, message).with_condition(Condition::HomeUnusable)
        };
        bastide::check_home(&home)?;
        let sessions = home.join("sessions");
        make_private(&sessions).map_err(failed)?;
        // Engines want paths that mean the same to everybody.
        let home = home.canonicalize().map_err(failed)?;
        let guest = GuestBinary::install(&home.join(GUESTS)).map_err(failed)?;
        let engines = Engines::default();
        let sidecar = Sidecar::default();
        Ok(Self { home, guest, address, options, progress: None, engines, sidecar })
    }

    /// Sets what receives the progress of pulling an image.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Whether the engine has an image.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BackendLost`] if the engine does not answer.
    pub async fn image_exists(&self, image: &str) -> Result<bool> {
        image::exists(&self.engine(&self.address).await?.0, image).await
    }

    /// The engine's id of a session's container.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] if it is a session of another backend.
    pub fn container_id(&self, machine: &Machine) -> Result<String> {
        state_of(machine).map(|state| state.container)
    }

    /// Whether a session's container still exists.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BackendLost`] if the engine does not answer.
    pub async fn exists(&self, machine: &Machine) -> Result<bool> {
        let state = state_of(machine)?;
        let (engine, _) = self.engine(&state.engine).await?;
        Ok(inspect(&engine, &state.container).await?.is_some())
    }

    /// The program that works beside sessions, put into the home when it is first needed.
    pub(crate) async fn sidecar(&self) -> Result<Arc<InstalledProgram>> {
        self.sidecar.install(self.home.join(GUESTS)).await.map_err(|error| {
            let message = format!("cannot put the sidecar program into the home: {error}");
            Error::new(ErrorKind::Io, message).with_source(error)
        })
    }

    /// An engine that answered before is believed to be there; whoever asks it finds out.
    async fn engine(&self, address: &EngineAddress) -> Result<(Engine, EngineInfo)> {
        self.engines.of(address).await
    }

    /// Removes a folder, whatever is in it: a session's (`remove`), or any (`remove-tree`).
    async fn remove_folder(&self, dir: &Path, how: &str) -> Result<()> {
        remove_folder(&self.guest.checked_path(), how, dir, REMOVAL).await
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn home(&self) -> &Path {
        &self.home
    }

    fn mounts_inside(&self) -> bool {
        true
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted> {
        let kept = DockerOptions::load(folder.path())?;
        let was_there = kept.is_some();
        // A fork is what it was forked from.
        let like = spec.like.as_ref().map(|id| folder.path().with_file_name(id.as_str()));
        let alike = like.as_deref().map(DockerOptions::load).transpose()?.flatten();
        let options = kept.or(alike).unwrap_or_else(|| self.options.clone());
        options.only_ids()?;
        check_rung(spec)?;
        check_grants(spec)?;
        // A session stays where it was made, whoever resumes it.
        let address = load_engine(folder.path()).or_else(|| load_engine(like.as_deref()?));
        let address = address.unwrap_or_else(|| self.address.clone());
        if spec.egress.is_some() {
            egress::check(&options, &address)?;
        }
        let (engine, about) = self.engine(&address).await?;
        if spec.egress.is_some() {
            egress::check_engine(&about)?;
        }
        network::check(&engine, spec.network).await?;
        let progress = self.progress.as_deref();
        let progress = progress.map(|report| report as &(dyn Fn(&str) + Send + Sync));
        let image = image::ensure(&engine, &options.image, options.pull, progress).await?;
        let spec = &rooted(spec, &image)?;
        let storage = Storage::of(spec, folder.id(), &options)?;
        let grants = host_grants(spec)?;
        let egress = self.egress_setup(folder.id(), spec).await?;
        if !was_there {
            let noted = guest_install::note_use(&self.home)
                .and_then(|()| store_engine(folder.path(), &address))
                .and_then(|()| options.store(folder.path()));
            noted.map_err(|error| {
                let message = format!("cannot start session {}: {error}", folder.id());
                Error::new(ErrorKind::Io, message)
            })?;
        }
        let (guest, home) = (&self.guest, &HomeLabel::of(&self.home)?);
        let boot = Boot {
            engine,
            about,
            guest,
            home,
            folder,
            spec,
            options,
            image,
            storage,
            grants,
            egress,
            was_there,
        };
        boot.run().await
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        let (_, Some(state)) = own_state(&self.home, machine)? else { return Err(copied(machine)) };
        let lost = |error| not_connected(&machine.id, error);
        let token = token::load(&state.dir).map_err(lost)?;
        match state.transport {
            Transport::Socket => {
                let run = run_dir(&state.dir);
                let stream = socket::connect_to(&run, state.guest.as_ref()).await;
                Ok(direct(Box::new(stream.map_err(lost)?), token))
            }
            Transport::Dial => {
                let (engine, _) = self.engine(&state.engine).await?;
                let stream = dial(&engine, &state.container).await?;
                connection(stream, token, &engine, &state.container, machine.protocol).await
            }
        }
    }

    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus> {
        let (_, Some(state)) = own_state(&self.home, machine)? else {
            return Ok(MachineStatus::Ended(MachineExit::unrecorded(COPIED)));
        };
        let alive = |process: &Option<ProcessIdentity>| match process {
            Some(process) => process.open().map(|held| Some(held.is_some())),
            None => Ok(None),
        };
        let unknown_state = |error: io::Error| {
            let message = format!("cannot look at session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message)
        };
        let guest_lives = alive(&state.guest).map_err(unknown_state)?;
        if guest_lives == Some(false) {
            // The container goes with its guest, whatever the engine knows of that yet.
            let end = || MachineExit::unrecorded("its guest ended");
            return Ok(MachineStatus::Ended(noted_exit(&state).await.unwrap_or_else(end)));
        }
        let (engine, _) = self.engine(&state.engine).await?;
        let found = inspect(&engine, &state.container).await;
        if found.as_ref().is_err_and(is_unreachable) {
            // Whoever asks next need not wait for it as long as this did.
            self.engines.note_silence(&state.engine);
        }
        let Some(found) = found? else {
            let end = MachineExit::unrecorded("its container was removed");
            return Ok(MachineStatus::Ended(noted_exit(&state).await.unwrap_or(end)));
        };
        let container = found.state.unwrap_or_default();
        if container.running != Some(true) {
            let end = noted_exit(&state).await.unwrap_or_else(|| engine_exit(&container));
            return Ok(MachineStatus::Ended(end));
        }
        if container.paused == Some(true) {
            let hint = format!("go on with it: `docker unpause {}`", state.container);
            return Ok(MachineStatus::Paused { hint });
        }
        if alive(&state.warden).map_err(unknown_state)? == Some(false) {
            // A guest that ended just now took its warden along, and the engine may not know yet.
            if let Some(end) = noted_exit(&state).await {
                return Ok(MachineStatus::Ended(end));
            }
            let why = "its warden is gone, and it did not end".to_owned();
            return Ok(MachineStatus::Broken { why });
        }
        let guest_pid = state.guest.filter(|_| guest_lives == Some(true)).map(|guest| guest.pid());
        Ok(MachineStatus::Running { guest_pid })
    }

    async fn stop(&self, machine: &Machine) -> Result<()> {
        let (_, Some(state)) = own_state(&self.home, machine)? else { return Ok(()) };
        if ended_by_warden(&state, EndMode::KeepFiles).await {
            return Ok(());
        }
        let (engine, _) = self.engine(&state.engine).await?;
        stop(&engine, &state.container).await
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        let (dir, state) = own_state(&self.home, machine)?;
        if let Some(state) = state
            && !ended_by_warden(&state, EndMode::RemoveFiles).await
        {
            let (engine, _) = self.engine(&state.engine).await?;
            remove(&engine, &HomeLabel::of(&self.home)?, &machine.id, &state.volumes).await?;
        }
        self.remove_folder(&dir, "remove").await
    }

    async fn discard(&self, folder: &Path) -> Result<()> {
        if warden_client::end(folder, EndMode::RemoveFiles, REMOVAL, REMOVAL).await.is_err()
            && DockerOptions::load(folder).is_ok_and(|options| options.is_some())
        {
            let address = load_engine(folder).unwrap_or_else(|| self.address.clone());
            let (engine, _) = self.engine(&address).await?;
            if let Some(id) = session_of_folder(&self.home, folder) {
                remove(&engine, &HomeLabel::of(&self.home)?, &id, &[]).await?;
            }
        }
        self.remove_folder(folder, "remove").await
    }

    fn is_own(&self, machine: &Machine) -> Result<bool> {
        Ok(own_state(&self.home, machine)?.1.is_some())
    }

    async fn remove_tree(&self, folder: &Path) -> Result<()> {
        self.remove_folder(folder, "remove-tree").await
    }

    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let (engine, _) = self.engine(&self.address).await?;
        sweep::sweep(&engine, &HomeLabel::of(&self.home)?, mode).await
    }

    fn stored(&self, machine: &Machine) -> BackendState {
        let state = state_of(machine).ok();
        let own = |state: State| (state.image, state.container, state.labels);
        let (image, container_id, labels) = state.map(own).unwrap_or_default();
        // The engine has none for a network with a policy: it is made beside it.
        let closed = [NetworkAccess::None, NetworkAccess::Policy];
        let is_closed = closed.contains(&machine.receipt.network);
        let network_mode = is_closed.then_some(NetworkMode::None);
        let labels = labels.into_iter().collect();
        BackendState::Docker { image, container_id, network_mode, labels }
    }

    fn unmade(&self) -> BackendState {
        BackendState::Docker {
            image: self.options.image.clone(),
            container_id: String::new(),
            network_mode: None,
            labels: self.options.labels.clone().into_iter().collect(),
        }
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        state_of(machine).ok()?.root
    }

    fn expose(&self) -> Option<&dyn Expose> {
        Some(self)
    }

    fn host_mounts(&self) -> Option<&dyn HostMounts> {
        Some(self)
    }

    fn egress_networks(&self) -> Option<&dyn EgressNetworks> {
        Some(self)
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }
}

#[async_trait]
impl Leases for DockerBackend {
    async fn update(&self, machine: &Machine, update: LeaseUpdate) -> Result<LeaseState> {
        let (_, Some(state)) = own_state(&self.home, machine)? else { return Err(copied(machine)) };
        if state.warden.is_none() {
            let message =
                "containers of a daemon elsewhere have no process here that could keep a lease";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("leave out the lease, or use a daemon of this machine"));
        }
        warden_client::lease(&state.dir, &machine.id, update, ANSWER).await
    }
}

#[async_trait]
impl Expose for DockerBackend {
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16> {
        let by_engine = self.published_by_engine(machine).await?;
        if let Some((_, outside)) = by_engine.iter().find(|(inside, _)| *inside == port) {
            return Ok(*outside);
        }
        let published = self.ports(machine, WardenRequest::Publish { port }).await?;
        let found = published.into_iter().find(|(inside, _)| *inside == port);
        found
            .map(|(_, outside)| outside)
            .ok_or_else(|| warden_client::unexpected_response(&machine.id))
    }

    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>> {
        let mut all = self.published_by_engine(machine).await?;
        if state_of(machine)?.transport == Transport::Socket {
            all.extend(self.ports(machine, WardenRequest::Ports).await?);
        }
        Ok(all)
    }
}

impl DockerBackend {
    async fn ports(&self, machine: &Machine, request: WardenRequest) -> Result<Vec<(u16, u16)>> {
        let (_, Some(state)) = own_state(&self.home, machine)? else { return Err(copied(machine)) };
        if state.transport == Transport::Dial {
            let message = "ports of this container can only be published when it is made";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("declare them, and ask for the network `bridge`"));
        }
        warden_client::ports(&state.dir, &machine.id, request, ANSWER).await
    }

    /// The ports the engine itself publishes.
    async fn published_by_engine(&self, machine: &Machine) -> Result<Vec<(u16, u16)>> {
        let state = state_of(machine)?;
        let (engine, _) = self.engine(&state.engine).await?;
        let found = inspect(&engine, &state.container).await?.ok_or_else(|| {
            let message = format!("the container of session {} was removed", machine.id);
            Error::new(ErrorKind::BackendLost, message)
        })?;
        let ports = found.network_settings.and_then(|settings| settings.ports).unwrap_or_default();
        let published = ports.into_iter().filter_map(|(inside, bindings)| {
            let inside = inside.strip_suffix("/tcp")?.parse().ok()?;
            let outside = bindings?.first()?.host_port.as_ref()?.parse().ok()?;
            Some((inside, outside))
        });
        Ok(published.collect())
    }
}

/// Has the warden of a session end it, and waits until the warden has ended too; false if it cannot.
async fn ended_by_warden(state: &State, mode: EndMode) -> bool {
    let held = state.warden.as_ref().map(ProcessIdentity::open);
    let Some(Ok(Some(warden))) = held else { return false };
    let asked = warden_client::end(&state.dir, mode, REMOVAL, REMOVAL).await;
    asked.is_ok() && ended(warden, ANSWER).await.is_ok()
}

/// Refuses a rung that was asked for by name and is not that of containers, and what only rungs of
/// this machine can open.
fn check_rung(spec: &MachineSpec) -> Result<()> {
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(ErrorKind::Unsupported, what.to_owned()).with_hint(hint))
    };
    match spec.isolation {
        Isolation::Exactly(rung) if rung != Rung::Container => {
            let what = format!("a container is not confined by `{}`", rung.as_str());
            return refuse(&what, "leave the isolation to the backend");
        }
        _ => {}
    }
    if spec.nested_sandbox {
        let hint = "open what they need by name: `cap_add`, `seccomp_unconfined`";
        return refuse("containers have no option for sandboxes inside them", hint);
    }
    Ok(())
}

/// The workspace of whoever did not choose one is where the image's own programs start, so that commands
/// start there too and files are found from there.
fn rooted(spec: &MachineSpec, image: &Image) -> Result<MachineSpec> {
    let mut spec = spec.clone();
    if let Some(folder) = image.folder.as_ref().filter(|_| spec.root.as_str() == DEFAULT_ROOT) {
        spec.root = folder.clone();
        if let Some(manifest) = spec.storage.as_mut().map(Arc::make_mut) {
            folder.as_str().clone_into(&mut manifest.root);
        }
        check_grants(&spec)?;
    }
    Ok(spec)
}

impl fmt::Debug for DockerBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerBackend")
            .field("home", &self.home)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
