//! What a backend does, done by wardens.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{EgressNetworks, Expose, HostMounts, LeaseState, LeaseUpdate, Leases};
use bastide::host::process_identity::{ProcessIdentity, ended, kill};
use bastide::host::{make_private, not_connected, own_folder, token};
use bastide::warden_client::{self, EndMode};
use bastide::{
    Backend, Booted, Condition, Connection, Error, ErrorKind, GuestPath, Isolation, Machine,
    MachineExit, MachineSpec, MachineStatus, NetworkAccess, Orphans, Receipt, Result, Rung,
    SessionFolder, SweepMode, check_home,
};
use bastide_guest_bin::{GuestBinary, InstalledProgram};
use bastide_proto::Usage;
use bastide_proto::boot::{Ids, Resolver};
use bastide_proto::mounts::MOUNTS_FOLDER;
use bastide_proto::warden::{END_FILE, GUEST_SOCKET, WardenRequest};
use bastide_sidecar_bin::Sidecar;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::Instant;

use crate::descendants::kill_descendants;
use crate::host::GrantedFile;
use crate::spares::Spares;
use crate::user::Identity;
use crate::{boot, groups, orphans, side_channel};

/// The word users choose this backend by.
pub(crate) const NAME: &str = "local";

/// The folder of guest programs in a home.
pub(crate) const GUESTS: &str = "guests";

/// How long the end of a sandbox may take.
const END: Duration = Duration::from_secs(10);

/// How long a warden may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a warden may take to note how its sandbox ended, and how often that is looked for.
const NOTED: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(5);

/// How long the end of a sandbox may take that has mounts: its processes end once what they wrote is stored.
const END_OF_MOUNTS: Duration = Duration::from_secs(90);

/// How long the removal of a session's files may take. It goes on if it takes longer.
const REMOVAL: Duration = Duration::from_secs(600);

/// Runs sessions on this machine.
pub struct LocalBackend {
    home: PathBuf,
    guest: Arc<GuestBinary>,
    resolver: Resolver,
    pub(crate) isolation: Isolation,
    spares: Option<Arc<Spares>>,
    pub(crate) fuse_device: PathBuf,
    /// Put into the home when the first network has a policy, or the first store is mounted from outside.
    sidecar: Sidecar,
}

/// What is needed to find a local machine again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// Where its session's folder was when it was booted. Nothing is done there because of that: homes are
    /// moved and copied.
    pub(crate) dir: PathBuf,
    pub(crate) warden: ProcessIdentity,
    pub(crate) init: ProcessIdentity,
    pub(crate) guest: ProcessIdentity,
    /// The devices of its files, from before its first command ran.
    #[serde(default)]
    pub(crate) devices: Vec<u64>,
    /// Where its workspace is.
    #[serde(default)]
    pub(crate) root: Option<GuestPath>,
    /// The files of the host that it was given. Sessions of earlier versions do not say.
    #[serde(default)]
    pub(crate) files: Vec<GrantedFile>,
}

impl LocalBackend {
    /// A backend that keeps its sessions in the folder `home`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written to.
    pub fn new(home: impl Into<PathBuf>) -> Result<Self> {
        let home = home.into();
        let failed = |error: io::Error| {
            let message = format!("cannot keep sessions in {}: {error}", home.display());
            Error::new(ErrorKind::Io, message).with_condition(Condition::HomeUnusable)
        };
        check_home(&home)?;
        let sessions = home.join("sessions");
        make_private(&sessions).map_err(failed)?;
        let guest = GuestBinary::install(&home.join(GUESTS)).map_err(failed)?;
        Ok(Self {
            home,
            guest: Arc::new(guest),
            resolver: Resolver::default(),
            isolation: Isolation::Auto,
            spares: Some(Arc::default()),
            fuse_device: PathBuf::from("/dev/fuse"),
            sidecar: Sidecar::default(),
        })
    }

    /// Sets the FUSE device that stores are mounted with from outside. Commands never see it.
    #[must_use]
    pub fn with_fuse_device(mut self, device: impl Into<PathBuf>) -> Self {
        self.fuse_device = device.into();
        self
    }

    /// Sets how guests resolve paths. For tests: a guest falls back by itself where the kernel has
    /// no `openat2`.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Sets how sessions are confined that do not ask for anything else.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Prepares nothing ahead of need. Otherwise a program that has created two sessions has the
    /// base of the next one built in the background: three small processes, for half a minute at
    /// most.
    #[must_use]
    pub fn without_spare(mut self) -> Self {
        self.spares = None;
        self
    }

    /// Expects many sessions: what they share is built with the first of them, not after the
    /// second.
    #[must_use]
    pub fn for_many(mut self) -> Self {
        self.spares = Some(Arc::new(Spares::for_many()));
        self
    }

    /// The program that works beside sessions, put into the home when it is first needed.
    pub(crate) async fn sidecar(&self) -> Result<Arc<InstalledProgram>> {
        self.sidecar.install(self.home.join(GUESTS)).await.map_err(|error| {
            let message = format!("cannot put the sidecar program into the home: {error}");
            Error::new(ErrorKind::Io, message).with_source(error)
        })
    }

    /// A machine on record with its session's folder in this home; `None` for the machine if it is that of
    /// another home, from which the folder was copied.
    pub(crate) fn own(&self, machine: &Machine) -> Result<(PathBuf, Option<State>)> {
        let state = state_of(machine)?;
        let (dir, is_own) = own_folder(&self.home, machine, &state.dir)?;
        Ok((dir, is_own.then_some(state)))
    }

    /// Removes a folder, whatever is in it: a session's, with what it says is the session's (`remove`), or
    /// any (`remove-tree`). A process of its own does that: a tree may be deep, wide and hostile.
    async fn remove(&self, dir: &Path, how: &str) -> io::Result<()> {
        if !dir.try_exists()? {
            return Ok(());
        }
        // Users of the session may own what is in it.
        let ids = match Identity::of_caller()?.ids {
            ids @ Ids::Subordinate { .. } => {
                bastide_proto::encode(&ids).map_err(io::Error::other)?
            }
            Ids::Range { .. } | Ids::Host(_) | Ids::Own { .. } => Vec::new(),
        };
        let mut remover = Command::new(self.guest.checked_path())
            .arg0("bastide-remover")
            .arg(how)
            .arg(dir)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut stdin) = remover.stdin.take() {
            // It is shorter than a pipe is deep. A remover that ended already says why below.
            drop(stdin.write_all(&ids).await);
        }
        let status = tokio::time::timeout(REMOVAL, remover.wait());
        let status = status.await.map_err(|_| io::ErrorKind::TimedOut)??;
        match (status.success(), status.signal()) {
            (true, _) => Ok(()),
            (_, Some(signal)) => Err(io::Error::other(format!(
                "signal {signal} ended what removes it; what is left goes when it is removed again"
            ))),
            (_, None) => Err(io::Error::other("something in its folder cannot be removed")),
        }
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn home(&self) -> &Path {
        &self.home
    }

    fn has_host_files(&self) -> bool {
        true
    }

    fn state_types(&self) -> Vec<&'static str> {
        vec![NAME, "unix_local"]
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted> {
        let mut spec = spec.clone();
        if spec.isolation == Isolation::Auto {
            spec.isolation = self.isolation;
        }
        let egress = self.egress_setup(folder.id(), &spec).await?;
        let wardens = boot::Wardens {
            guest: &self.guest,
            spares: self.spares.as_ref(),
            egress: egress.as_ref(),
        };
        boot::boot(wardens, &self.home, self.resolver, folder, &spec).await
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        let (dir, Some(state)) = self.own(machine)? else { return Err(copied(machine)) };
        let lost = |error| not_connected(&machine.id, error);
        let stream = warden_client::connect(&dir, GUEST_SOCKET).await.map_err(lost)?;
        let token = token::load(&dir).map_err(lost)?;
        let connected = stream.into_std();
        let greet =
            |stream| side_channel::connection(stream, state.devices, token, machine.protocol);
        connected.and_then(greet).map_err(|error| {
            let message = format!("cannot connect to session {}: {error}", machine.id);
            Error::new(ErrorKind::BackendLost, message)
        })
    }

    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus> {
        let (dir, Some(state)) = self.own(machine)? else {
            return Ok(MachineStatus::Ended(MachineExit::unrecorded(COPIED)));
        };
        // A sandbox that has just ended is one whose warden has still to note how.
        let deadline = Instant::now() + NOTED;
        let found = loop {
            let found = status(&state, &dir);
            let unrecorded = matches!(&found, Ok(MachineStatus::Ended(end)) if end.at_ms.is_none());
            let is_noted = !unrecorded || !matches!(state.warden.open(), Ok(Some(_)));
            if is_noted || Instant::now() >= deadline {
                break found;
            }
            tokio::time::sleep(AGAIN).await;
        };
        found.map_err(|error| {
            let message = format!("cannot look at session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message)
        })
    }

    async fn stop(&self, machine: &Machine) -> Result<()> {
        let (dir, Some(state)) = self.own(machine)? else { return Ok(()) };
        end(&state, &dir, EndMode::KeepFiles).await.map_err(|error| {
            let message = format!("cannot stop session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message)
        })
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        let (dir, state) = self.own(machine)?;
        let ended = match &state {
            Some(state) => end(state, &dir, EndMode::RemoveFiles).await,
            None => Ok(()),
        };
        let removed = match ended {
            Ok(()) => self.remove(&dir, "remove").await,
            Err(error) => Err(error),
        };
        removed.map_err(|error| not_removed(&machine.id.to_string(), &dir, &error))
    }

    async fn discard(&self, folder: &Path) -> Result<()> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let failed = |error: io::Error| not_removed(&name, folder, &error);
        // A sandbox that came up has a warden, and that one knows how to end it. One that cannot do
        // anything any more is found by where it is.
        if warden_client::end(folder, EndMode::RemoveFiles, ANSWER, REMOVAL).await.is_err() {
            let (home, folder) = (self.home.clone(), folder.to_owned());
            let found =
                tokio::task::spawn_blocking(move || orphans::living_in(&home, &folder)).await;
            for (pid, process) in
                found.map_err(io::Error::other).and_then(|found| found).map_err(failed)?
            {
                end_process(pid, process).await.map_err(failed)?;
            }
        }
        self.remove(folder, "remove").await.map_err(failed)
    }

    fn is_own(&self, machine: &Machine) -> Result<bool> {
        Ok(self.own(machine)?.1.is_some())
    }

    async fn remove_tree(&self, folder: &Path) -> Result<()> {
        let name = folder.display().to_string();
        let removed = self.remove(folder, "remove-tree").await;
        removed.map_err(|error| not_removed(&name, folder, &error))
    }

    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let home = self.home.clone();
        let swept = tokio::task::spawn_blocking(move || orphans::sweep(&home, mode)).await;
        let removed = swept.map_err(io::Error::other).and_then(|swept| swept).map_err(|error| {
            let message = format!("cannot look for stray processes: {error}");
            Error::new(ErrorKind::Io, message)
        })?;
        Ok(Orphans { removed, unclear: Vec::new() })
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        state_of(machine).ok()?.root
    }

    fn expose(&self) -> Option<&dyn Expose> {
        Some(self)
    }

    fn counted(&self, machine: &Machine) -> Option<Usage> {
        let (dir, Some(_)) = self.own(machine).ok()? else { return None };
        groups::counted(&dir)
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(self)
    }

    fn host_mounts(&self) -> Option<&dyn HostMounts> {
        Some(self)
    }

    fn egress_networks(&self) -> Option<&dyn EgressNetworks> {
        Some(self)
    }
}

#[async_trait]
impl Expose for LocalBackend {
    async fn publish(&self, machine: &Machine, port: u16) -> Result<u16> {
        let Receipt { rung, network, .. } = &machine.receipt;
        if *rung == Rung::Landlock && *network == NetworkAccess::None {
            let message = "without a network there are no sockets on the rung `landlock`";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_condition(Condition::LoopbackMissing));
        }
        let published = self.ports(machine, WardenRequest::Publish { port }).await?;
        let found = published.into_iter().find(|(inside, _)| *inside == port);
        found
            .map(|(_, outside)| outside)
            .ok_or_else(|| warden_client::unexpected_response(&machine.id))
    }

    async fn published(&self, machine: &Machine) -> Result<Vec<(u16, u16)>> {
        self.ports(machine, WardenRequest::Ports).await
    }
}

#[async_trait]
impl Leases for LocalBackend {
    async fn update(&self, machine: &Machine, update: LeaseUpdate) -> Result<LeaseState> {
        let (dir, Some(_)) = self.own(machine)? else { return Err(copied(machine)) };
        warden_client::lease(&dir, &machine.id, update, ANSWER).await
    }
}

impl LocalBackend {
    async fn ports(&self, machine: &Machine, request: WardenRequest) -> Result<Vec<(u16, u16)>> {
        let (dir, Some(_)) = self.own(machine)? else { return Err(copied(machine)) };
        warden_client::ports(&dir, &machine.id, request, ANSWER).await
    }
}

/// What there is to say about the machine of a session that was copied.
const COPIED: &str = "it was copied here from elsewhere, and its machine is the original's";

pub(crate) fn copied(machine: &Machine) -> Error {
    let message = format!("session {} is not running: {COPIED}", machine.id);
    Error::new(ErrorKind::BackendLost, message)
        .with_condition(Condition::SessionCopied(machine.id.to_string()))
}

impl fmt::Debug for LocalBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalBackend").field("home", &self.home).finish_non_exhaustive()
    }
}

fn state_of(machine: &Machine) -> Result<State> {
    State::deserialize(&machine.state).map_err(|error| {
        let message = format!("the state of session {} is damaged: {error}", machine.id);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

fn not_removed(name: &str, dir: &Path, error: &io::Error) -> Error {
    let message = format!("cannot remove session {name}: {error}");
    Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
}

fn status(state: &State, dir: &Path) -> io::Result<MachineStatus> {
    let (warden, init) = (state.warden.open()?, state.init.open()?);
    Ok(match (warden, init) {
        (Some(_), Some(_)) => {
            let guest_pid = state.guest.open()?.map(|_| state.guest.pid());
            MachineStatus::Running { guest_pid }
        }
        (None, Some(_)) => {
            MachineStatus::Broken { why: "its warden is gone, and it did not end".to_owned() }
        }
        (_, None) => MachineStatus::Ended(how_it_ended(dir)),
    })
}

/// What the warden noted, if it could.
fn how_it_ended(dir: &Path) -> MachineExit {
    let noted = fs::read_to_string(dir.join(END_FILE)).ok();
    let noted = noted.and_then(|text| serde_json::from_str(&text).ok());
    noted.unwrap_or_else(|| MachineExit::unrecorded("it ended, and nobody was there to see how"))
}

/// Ends the sandbox, and waits until its warden has seen to what is left of it.
async fn end(state: &State, dir: &Path, mode: EndMode) -> io::Result<()> {
    let (warden, init) = (state.warden.open()?, state.init.open()?);
    if let Some(warden) = warden {
        let has_mounts = !matches!(dir.join(MOUNTS_FOLDER).try_exists(), Ok(false));
        let most = if has_mounts { END_OF_MOUNTS } else { ANSWER };
        if warden_client::end(dir, mode, most, REMOVAL).await.is_ok() {
            return ended(warden, END).await;
        }
        // It may be on its way out already, or unable to do anything at all.
        kill(&warden)?;
        ended(warden, END).await?;
    }
    // Without its warden a sandbox ends by itself, unless it cannot do anything either.
    match init {
        Some(init) => end_process(state.init.pid().cast_signed(), init).await,
        None => Ok(()),
    }
}

async fn end_process(pid: i32, process: OwnedFd) -> io::Result<()> {
    if orphans::is_host_init(pid) {
        // It cannot get away while it is held, and what it looks after must not.
        tokio::task::spawn_blocking(move || kill_descendants(pid))
            .await
            .map_err(io::Error::other)??;
    }
    kill(&process)?;
    ended(process, END).await
}
