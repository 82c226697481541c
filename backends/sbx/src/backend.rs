//! What a backend does, done by `sbx`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::Expose;
use bastide::host::process_identity::ended;
use bastide::host::{make_private, remove_folder, token};
use bastide::model::manifest::DEFAULT_ROOT;
use bastide::{
    Backend, Booted, Condition, Connection, Error, ErrorKind, Isolation, Machine, MachineExit,
    MachineSpec, MachineStatus, NetworkAccess, Origin, Orphans, Result, Rung, SessionFolder,
    SessionId, SweepMode,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::GuestPath;
use tokio::sync::OnceCell;

use crate::boot::{Boot, end, workspace_of};
use crate::codex;
use crate::dial::dial;
use crate::dialect::Dialect;
use crate::options::SbxOptions;
use crate::program::Sbx;
use crate::resource_record::{ResourceRecord, remove, stop};
use crate::state::{State, note_use, own_prefix, own_state, sandbox_name, state_of};

/// The word users choose this backend by.
pub(crate) const NAME: &str = "sbx";

/// How long a process of ours may take to end.
const END: Duration = Duration::from_secs(10);

/// How long a removal may take.
const REMOVAL: Duration = Duration::from_secs(120);

/// What there is to say about the machine of a session that was copied.
const COPIED: &str = "it was copied here from elsewhere, and its sandbox is the original's";

/// Runs sessions in sandboxes of Docker's `sbx`.
pub struct SbxBackend {
    home: PathBuf,
    guest: GuestBinary,
    sbx: Sbx,
    options: SbxOptions,
    dialect: OnceCell<Dialect>,
}

impl SbxBackend {
    /// A backend that keeps its sessions in the folder `home`, and makes new ones by the program `sbx` with
    /// `options`.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be written to.
    pub fn new(home: impl Into<PathBuf>, sbx: Sbx, options: SbxOptions) -> Result<Self> {
        let home = home.into();
        let failed = |error: io::Error| {
            let message = format!("cannot keep sessions in {}: {error}", home.display());
            Error::new(ErrorKind::Io, message).with_condition(Condition::HomeUnusable)
        };
        bastide::check_home(&home)?;
        make_private(&home.join("sessions")).map_err(failed)?;
        // Folders are inside at their own paths.
        let home = home.canonicalize().map_err(failed)?;
        let guest = GuestBinary::install(&home.join("guests")).map_err(failed)?;
        Ok(Self { home, guest, sbx, options, dialect: OnceCell::new() })
    }

    /// The release of the program. It is asked once.
    async fn dialect(&self) -> Result<Dialect> {
        self.dialect.get_or_try_init(|| Dialect::probe(&self.sbx)).await.copied()
    }

    /// Removes a folder, whatever is in it: a session's (`remove`), or any (`remove-tree`).
    async fn remove_folder(&self, dir: &Path, how: &str) -> Result<()> {
        remove_folder(&self.guest.checked_path(), how, dir, REMOVAL).await
    }
}

#[async_trait]
impl Backend for SbxBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn home(&self) -> &Path {
        &self.home
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> Result<Booted> {
        check(spec)?;
        self.options.check()?;
        if let Some(login) = &self.options.codex_login {
            codex::check(login)?;
        }
        let dialect = self.dialect().await?;
        note_use(&self.home).map_err(|error| {
            let message = format!("cannot start session {}: {error}", folder.id());
            Error::new(ErrorKind::Io, message)
        })?;
        let root = own_root(spec, folder)?;
        let sandbox = sandbox_name(&self.home, folder.id())?;
        // One that was there before is made again as it was.
        let like = spec.like.as_ref().map(|id| folder.path().with_file_name(id.as_str()));
        let before = ResourceRecord::load(like.as_deref().unwrap_or(folder.path()))?;
        let options = match before {
            Some(before) => &before.made_with.complete(self.options.clone())?,
            None => &self.options,
        };
        let (sbx, guest) = (&self.sbx, &self.guest);
        Boot { sbx, dialect, guest, folder, spec, options, sandbox, root }.run().await
    }

    async fn connect(&self, machine: &Machine) -> Result<Connection> {
        let (_, Some(state)) = own_state(&self.home, machine)? else {
            let message = format!("session {} is not running: {COPIED}", machine.id);
            return Err(Error::new(ErrorKind::BackendLost, message)
                .with_hint("use the original, or make a fresh session"));
        };
        let lost = |why: String| {
            let message = format!("session {} is not running: {why}", machine.id);
            Error::new(ErrorKind::BackendLost, message)
        };
        let token = token::load(&state.dir).map_err(|error| lost(error.to_string()))?;
        // A call in a sandbox that was stopped would start it, without its guest.
        if state.keeper.open().is_ok_and(|keeper| keeper.is_none()) {
            return Err(lost("its guest ended".to_owned()));
        }
        let stream = dial(&Sbx::new(&state.program), &state.sandbox)?;
        Ok(Connection {
            stream: Box::new(stream),
            token,
            side: None,
            greeted: false,
            outage: std::time::Duration::ZERO,
        })
    }

    async fn inspect(&self, machine: &Machine) -> Result<MachineStatus> {
        let (_, Some(state)) = own_state(&self.home, machine)? else {
            return Ok(MachineStatus::Ended(MachineExit::unrecorded(COPIED)));
        };
        let keeper = state.keeper.open().map_err(|error| {
            let message = format!("cannot look at session {}: {error}", machine.id);
            Error::new(ErrorKind::Io, message)
        })?;
        if keeper.is_some() {
            return Ok(MachineStatus::Running { guest_pid: None });
        }
        let sbx = Sbx::new(&state.program);
        match sbx.find(&state.sandbox).await? {
            Some(sandbox) if sandbox.is_running() => {
                let why = "its guest ended, and the sandbox runs on".to_owned();
                Ok(MachineStatus::Broken { why })
            }
            Some(_) => Ok(MachineStatus::Ended(MachineExit::unrecorded("its sandbox was stopped"))),
            None => Ok(MachineStatus::Ended(MachineExit::unrecorded("its sandbox is gone"))),
        }
    }

    async fn stop(&self, machine: &Machine) -> Result<()> {
        let (_, Some(state)) = own_state(&self.home, machine)? else { return Ok(()) };
        stop(&Sbx::new(&state.program), &state.sandbox).await?;
        end_keeper(&state).await
    }

    async fn destroy(&self, machine: &Machine) -> Result<()> {
        let (dir, state) = own_state(&self.home, machine)?;
        if let Some(state) = state {
            match ResourceRecord::load(&dir)? {
                Some(journal) => journal.release(&dir).await?,
                None => remove(&Sbx::new(&state.program), &state.sandbox).await?,
            }
            end_keeper(&state).await?;
        }
        self.remove_folder(&dir, "remove").await
    }

    async fn discard(&self, folder: &Path) -> Result<()> {
        let is_copy = Origin::of(folder).is_ok_and(|origin| origin == Origin::Copied);
        if let Some(journal) = ResourceRecord::load(folder)?
            && !is_copy
        {
            journal.release(folder).await?;
        }
        self.remove_folder(folder, "remove").await
    }

    fn is_own(&self, machine: &Machine) -> Result<bool> {
        Ok(own_state(&self.home, machine)?.1.is_some())
    }

    async fn remove_tree(&self, folder: &Path) -> Result<()> {
        self.remove_folder(folder, "remove-tree").await
    }

    /// Removes sandboxes that are named as this home's and whose session has no folder.
    async fn sweep(&self, mode: SweepMode) -> Result<Orphans> {
        let prefix = own_prefix(&self.home)?;
        let mut orphans = Orphans::default();
        for sandbox in self.sbx.list().await? {
            let Some(id) = sandbox.name.strip_prefix(&prefix) else { continue };
            let Ok(id) = id.parse::<SessionId>() else { continue };
            // A folder that cannot be looked at is there.
            let folder = self.home.join("sessions").join(id.as_str());
            if !matches!(folder.try_exists(), Ok(false)) {
                continue;
            }
            if mode == SweepMode::Remove {
                remove(&self.sbx, &sandbox.name).await?;
            }
            orphans.removed.push(format!("the sandbox {}", sandbox.name));
        }
        Ok(orphans)
    }

    /// What is stored of a session is what is stored of one on this machine: it is believed about nothing.
    fn state_types(&self) -> Vec<&'static str> {
        vec!["local"]
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        state_of(machine).ok()?.root
    }

    fn expose(&self) -> Option<&dyn Expose> {
        Some(self)
    }
}

/// Ends the process that keeps a guest running, which should end with it.
async fn end_keeper(state: &State) -> Result<()> {
    end(&state.keeper);
    let Ok(Some(keeper)) = state.keeper.open() else { return Ok(()) };
    ended(keeper, END).await.map_err(|error| {
        let message = format!("the `sbx exec` of sandbox {} stays: {error}", state.sandbox);
        Error::new(ErrorKind::Timeout, message)
    })
}

/// The workspace of whoever did not choose one: a folder of the session's, which the sandbox has at the
/// same path.
fn own_root(spec: &MachineSpec, folder: &SessionFolder) -> Result<Option<GuestPath>> {
    let root = workspace_of(folder.path());
    // Once it was made, the record says where.
    if spec.root.as_str() != DEFAULT_ROOT && Path::new(spec.root.as_str()) != root {
        return Ok(None);
    }
    let wrong = |why: String| {
        let message = format!("{} cannot be a workspace: {why}", root.display());
        Error::new(ErrorKind::InvalidInput, message)
    };
    let text = root.to_str().ok_or_else(|| wrong("it is not UTF-8".to_owned()))?;
    text.parse().map(Some).map_err(|error| wrong(format!("{error}")))
}

/// Refuses what sandboxes of `sbx` do not have.
fn check(spec: &MachineSpec) -> Result<()> {
    let refuse = |what: &str, hint: &str| {
        Err(Error::new(ErrorKind::Unsupported, what.to_owned()).with_hint(hint))
    };
    match spec.isolation {
        Isolation::Exactly(rung) if rung != Rung::MicroVm => {
            let what = format!("a sandbox of sbx is not confined by `{}`", rung.as_str());
            return refuse(&what, "leave the isolation to the backend");
        }
        _ => {}
    }
    if spec.nested_sandbox {
        return refuse(
            "sandboxes of sbx have no option for sandboxes inside them",
            "use the backend `local`",
        );
    }
    if spec.network == NetworkAccess::Host {
        return refuse(
            "a microVM cannot have the host's network",
            "choose `bridge`; services of this host are at host.docker.internal",
        );
    }
    if spec.storage.is_some() {
        return refuse("sandboxes of sbx have no mounts", "use another backend for these mounts");
    }
    Ok(())
}

impl fmt::Debug for SbxBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SbxBackend")
            .field("home", &self.home)
            .field("sbx", &self.sbx)
            .finish_non_exhaustive()
    }
}
