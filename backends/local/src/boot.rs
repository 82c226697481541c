//! Bringing a sandbox up.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::backend::{KeepAlive, KeepAliveHandle, Retained};
use bastide::host::process_identity::ProcessIdentity;
use bastide::host::token;
use bastide::{
    Booted, Connection, Error, ErrorKind, Isolation, Machine, MachineSpec, NetworkAccess, Result,
    Rung, SessionFolder,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::VERSION;
use bastide_proto::boot::{BaseSpec, BootFailure, BootReport, BootSpec, Resolver, SandboxReady};
use bastide_proto::hello::Token;
use bastide_proto::warden::{END_FILE, RELEASE};

use crate::backend::{NAME, State};
use crate::egress::EgressSetup;
use crate::plan::{Plan, PlanInput};
use crate::receipt::receipt;
use crate::refusal::because;
use crate::spares::{SpareWarden, Spares};
use crate::warden::Warden;
use crate::{host, ladder, layout, side_channel};

/// How long a sandbox may take to come up.
const BOOT: Duration = Duration::from_secs(10);

/// Holds a sandbox up: its warden ends it when this socket closes.
struct OwnerSocket(StdStream);

impl KeepAliveHandle for OwnerSocket {
    fn release(&self) -> io::Result<()> {
        use std::io::Write;
        (&self.0).write_all(&[RELEASE])
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

/// Where wardens come from, and what they are handed.
#[derive(Clone, Copy)]
pub(crate) struct Wardens<'a> {
    pub(crate) guest: &'a Arc<GuestBinary>,
    pub(crate) spares: Option<&'a Arc<Spares>>,
    /// What serves the network, where it has a policy.
    pub(crate) egress: Option<&'a EgressSetup>,
}

/// A warden that was executed and told nothing yet, if one is needed.
struct Executed(Option<(Warden, StdStream)>);

impl Executed {
    fn start(wardens: Wardens<'_>) -> Self {
        let has_other = wardens.spares.is_some_and(|spares| spares.has_warden());
        // Whatever is wrong is told when one has to be there.
        let start = || Warden::start(wardens.guest).ok();
        Self(if has_other { None } else { start() })
    }
}

impl Drop for Executed {
    fn drop(&mut self) {
        if let Some((warden, control)) = self.0.take() {
            // It ends by itself when the socket closes; here it is only collected.
            drop(control);
            warden.reap_in_background();
        }
    }
}

/// Brings the sandbox of a session up.
pub(crate) async fn boot(
    wardens: Wardens<'_>,
    home: &Path,
    resolver: Resolver,
    folder: &SessionFolder,
    spec: &MachineSpec,
) -> Result<Booted> {
    let (id, dir) = (folder.id(), folder.path());
    let failed = |error: io::Error| {
        let message = format!("cannot start session {id} in {}: {error}", dir.display());
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    };
    if spec.network == NetworkAccess::Bridge {
        let message = "sessions on this machine have no network of their own that leads out";
        return Err(
            Error::new(ErrorKind::Unsupported, message).with_hint("ask for `none` or `host`")
        );
    }
    host::refuse_nested(spec)?;
    let before = spec.before.as_deref();
    let storage = dir.join("work");
    // A session that was there before has its files, and keeps them whatever becomes of this boot.
    // Nobody outside gets past the folder it lies in; inside, users besides the owner may look.
    let has_storage = !new_folder(&storage, 0o755).map_err(failed)?;
    let was_there = has_storage || !folder.is_new();
    forget_end(dir).map_err(failed)?;
    // A warden takes as long to be executed as the plan takes to be made: it is started first.
    let mut executed = Executed::start(wardens);
    let toolchains = layout::toolchains(&spec.search_path);
    let token = token::make(dir).map_err(failed)?;
    let input = PlanInput {
        home,
        dir,
        storage: &storage,
        was_there,
        has_storage,
        id,
        spec,
        toolchains: &toolchains,
        token: &token,
        by_itself: spec.isolation == Isolation::Auto,
    };
    let mut failures = Vec::new();
    let (mut climbed, mut unheld) = (None, None);
    for rung in ladder::rungs(spec.isolation, dir, before.map(|machine| machine.receipt.rung))? {
        let plan = match Plan::new(&input, rung) {
            // What this one cannot do is not why the session failed, but why it got no further.
            Err(error) if !failures.is_empty() => {
                unheld = Some((rung, error));
                break;
            }
            plan => plan?,
        };
        let has_files = plan.has_files(&input);
        plan.image.note(dir).map_err(failed)?;
        let stood = try_rung(wardens, &mut executed, folder, &input, plan, resolver).await;
        match stood.map_err(failed)? {
            Ok(up) => {
                climbed = Some((up, has_files));
                break;
            }
            Err(failure) => {
                let missing = ladder::is_missing(&failure);
                failures.push((rung, failure));
                if !missing {
                    break;
                }
            }
        }
    }
    let Some(((plan, up), has_files)) = climbed else {
        return Err(ladder::none_left(&failures, unheld.as_ref()));
    };
    ladder::note(dir, plan.rung, folder.is_tied()).map_err(failed)?;
    let BootedSandbox { warden, ready, control, connection } = up;
    let devices = connection.side.as_ref().map(|side| side.devices.clone()).unwrap_or_default();
    let warden_pid =
        warden.pid().ok_or_else(|| failed(io::Error::other("the warden has ended")))?;
    warden.reap_in_background();
    let state = State {
        dir: dir.to_owned(),
        warden: ProcessIdentity::of(warden_pid).map_err(failed)?,
        init: ProcessIdentity::of(ready.init_pid).map_err(failed)?,
        guest: ProcessIdentity::of(ready.guest_pid).map_err(failed)?,
        devices,
        root: Some(plan.root.clone()),
        files: host::granted_files(&plan.files, &plan.root),
    };
    let machine = Machine {
        id: id.clone(),
        backend: NAME.to_owned(),
        state: serde_json::to_value(state).map_err(|error| failed(error.into()))?,
        receipt: receipt(&ready, spec, &plan),
        environment: plan.environment,
        protocol: VERSION,
    };
    Ok(Booted {
        machine,
        connection: Some(connection),
        keep_alive: Some(KeepAlive::new(OwnerSocket(control))),
        retained: if has_files { Retained::Files } else { Retained::Nothing },
    })
}

/// A sandbox that came up.
struct BootedSandbox {
    warden: Warden,
    ready: SandboxReady,
    control: StdStream,
    connection: Connection,
}

/// Has a warden build a sandbox; the inner failure is the sandbox's own.
async fn boot_once(
    wardens: Wardens<'_>,
    executed: &mut Executed,
    folder: &SessionFolder,
    plan: &Plan,
    base_spec: &BaseSpec,
    boot: &BootSpec,
) -> io::Result<std::result::Result<BootedSandbox, BootFailure>> {
    if let Some(spare) = wardens.spares.and_then(|spares| spares.take(base_spec)) {
        match boot_in(spare, folder, wardens.egress, plan, boot).await {
            // Somebody ended it while it waited.
            Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
            built => return built,
        }
    }
    let zygote = match wardens.spares {
        Some(spares) => spares.zygote(wardens.guest, base_spec).await,
        None => None,
    };
    let executed = executed.0.take();
    let idle = SpareWarden::start(wardens.guest, executed, zygote, base_spec.clone()).await?;
    boot_in(idle, folder, wardens.egress, plan, boot).await
}

async fn boot_in(
    idle: SpareWarden,
    folder: &SessionFolder,
    egress: Option<&EgressSetup>,
    plan: &Plan,
    boot: &BootSpec,
) -> io::Result<std::result::Result<BootedSandbox, BootFailure>> {
    let (first, far_first) = StdStream::pair()?;
    let first = match (plan.rung, plan.image.image()) {
        (Rung::Namespaces, None) => {
            Ok(side_channel::connection(first, plan.devices(None), Token(boot.token), VERSION)?)
        }
        // The warden makes what the files are on, and what that is can be seen only then.
        _ => Err(first),
    };
    let mut handed = vec![far_first.as_fd(), folder.lock().as_fd()];
    handed.extend(egress.into_iter().flat_map(EgressSetup::descriptors));
    let report = match tokio::time::timeout(BOOT, idle.boot_session(boot, &handed)).await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => return Err(given_up(idle.warden, error).await),
        Err(_) => return Err(given_up(idle.warden, io::ErrorKind::TimedOut.into()).await),
    };
    let SpareWarden { warden, control, .. } = idle;
    match report {
        BootReport::Ready(ready) => {
            let workspace = ready.image.as_ref().and_then(|image| image.as_ref().ok()).copied();
            let token = Token(boot.token);
            let late =
                |first| side_channel::connection(first, plan.devices(workspace), token, VERSION);
            let connection = first.or_else(late)?;
            Ok(Ok(BootedSandbox { warden, ready, control, connection }))
        }
        BootReport::Failed(failure) => {
            // It ends by itself now; what it held is free when it has.
            drop(warden.ended(BOOT).await);
            Ok(Err(failure))
        }
    }
}

/// Tries one rung; the inner failure is the rung's own.
async fn try_rung(
    wardens: Wardens<'_>,
    executed: &mut Executed,
    folder: &SessionFolder,
    input: &PlanInput<'_>,
    mut plan: Plan,
    resolver: Resolver,
) -> io::Result<std::result::Result<(Plan, BootedSandbox), BootFailure>> {
    loop {
        let base_spec = plan.base_spec(input);
        let boot = plan.boot_spec(input, resolver);
        match boot_once(wardens, executed, folder, &plan, &base_spec, &boot).await? {
            Ok(up) => {
                if let Some(spares) = wardens.spares {
                    spares.prepare(wardens.guest, &base_spec);
                }
                return Ok(Ok((plan, up)));
            }
            // The machine promises ids that it does not give: a session has its own all the same.
            Err(failure) if failure.no_range => plan = plan.without_range(&because(&failure)),
            Err(failure) => return Ok(Err(failure)),
        }
    }
}

/// Ends a warden that did not bring its sandbox up. The sandbox ends with it.
async fn given_up(mut warden: Warden, why: io::Error) -> io::Error {
    drop(warden.kill());
    drop(warden.ended(BOOT).await);
    match why.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => {
            io::Error::other("somebody ended the warden, its process on this host, meanwhile")
        }
        _ => why,
    }
}

/// A note of how the session ended before is no news any more.
fn forget_end(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END_FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a folder. False if it was there already.
fn new_folder(path: &Path, mode: u32) -> io::Result<bool> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        // The caller's mask may have taken something away.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
