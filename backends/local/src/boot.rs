//! Bringing a sandbox up.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bastide::backend::{Hold, Leash, Remains};
use bastide::host::process::ProcessIdentity;
use bastide::{
    Booted, Connection, Error, ErrorKind, Isolation, Machine, MachineSpec, NetworkAccess, Result,
    Rung, SessionFolder,
};
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{BootFailure, BootReport, BootSpec, Groundwork, Ready, Resolver};
use bastide_proto::hello::Token;
use bastide_proto::warden::{END_NAME, LET_GO};

use crate::backend::{NAME, State};
use crate::nursery::Warden;
use crate::plan::{Ground, Plan};
use crate::receipt::receipt;
use crate::refusal::because;
use crate::warden::{Spares, Waiting};
use crate::{ladder, layout, side, token};

/// How long a sandbox may take to come up.
const BOOT: Duration = Duration::from_secs(10);

/// Holds a sandbox up: its warden ends it when this socket closes.
struct OwnersEnd(StdStream);

impl Hold for OwnersEnd {
    fn let_go(&self) -> io::Result<()> {
        use std::io::Write;
        (&self.0).write_all(&[LET_GO])
    }
}

/// Where wardens come from.
#[derive(Clone, Copy)]
pub(crate) struct Wardens<'a> {
    pub(crate) guest: &'a Arc<GuestBinary>,
    pub(crate) spares: Option<&'a Arc<Spares>>,
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
            warden.let_live();
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
        Error::new(ErrorKind::Io, format!("cannot start session {id}: {error}"))
            .with("path", dir.display().to_string())
    };
    if spec.network == NetworkAccess::Bridge {
        let message = "sessions on this machine have no network of their own that leads out";
        return Err(Error::new(ErrorKind::Unsupported, message).hint("ask for `none` or `host`"));
    }
    let storage = dir.join("work");
    // A session that was there before has its files, and keeps them whatever becomes of this boot.
    // Nobody outside gets past the folder it lies in; inside, users besides the owner may look.
    let was_there = !new_folder(&storage, 0o755).map_err(failed)? || !folder.is_new();
    forget_end(dir).map_err(failed)?;
    // A warden takes as long to be executed as the plan takes to be made: it is started first.
    let mut executed = Executed::start(wardens);
    let toolchains = layout::toolchains(&spec.search_path);
    let token = token::make(dir).map_err(failed)?;
    let ground = Ground {
        home,
        dir,
        storage: &storage,
        was_there,
        id,
        spec,
        toolchains: &toolchains,
        token: &token,
        by_itself: spec.isolation == Isolation::Auto,
    };
    let mut failures = Vec::new();
    let (mut climbed, mut unheld) = (None, None);
    for rung in ladder::rungs(spec.isolation, dir)? {
        let plan = match Plan::new(&ground, rung) {
            // What this one cannot do is not why the session failed, but why it got no further.
            Err(error) if !failures.is_empty() => {
                unheld = Some((rung, error));
                break;
            }
            plan => plan?,
        };
        let stood = stand(wardens, &mut executed, folder, &ground, plan, resolver).await;
        match stood.map_err(failed)? {
            Ok(up) => {
                climbed = Some(up);
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
    let Some((plan, up)) = climbed else {
        return Err(ladder::none_left(&failures, unheld.as_ref()));
    };
    ladder::note(dir, plan.rung).map_err(failed)?;
    let Up { warden, ready, control, connection } = up;
    let devices = connection.side.as_ref().map(|side| side.devices.clone()).unwrap_or_default();
    let warden_pid =
        warden.pid().ok_or_else(|| failed(io::Error::other("the warden has ended")))?;
    warden.let_live();
    let state = State {
        dir: dir.to_owned(),
        warden: ProcessIdentity::of(warden_pid).map_err(failed)?,
        init: ProcessIdentity::of(ready.init_pid).map_err(failed)?,
        guest: ProcessIdentity::of(ready.guest_pid).map_err(failed)?,
        devices,
        root: Some(plan.root.clone()),
    };
    let machine = Machine {
        id: id.clone(),
        backend: NAME.to_owned(),
        state: serde_json::to_value(state).map_err(|error| failed(error.into()))?,
        receipt: receipt(&ready, spec, &plan),
        environment: plan.environment,
    };
    Ok(Booted {
        machine,
        connection: Some(connection),
        leash: Some(Leash::new(OwnersEnd(control))),
        remains: Remains::Files,
    })
}

/// A sandbox that came up.
struct Up {
    warden: Warden,
    ready: Ready,
    control: StdStream,
    connection: Connection,
}

/// Has a warden build a sandbox; the inner failure is the sandbox's own.
async fn attempt(
    wardens: Wardens<'_>,
    executed: &mut Executed,
    folder: &SessionFolder,
    plan: &Plan,
    ground: &Groundwork,
    boot: &BootSpec,
) -> io::Result<std::result::Result<Up, BootFailure>> {
    if let Some(spare) = wardens.spares.and_then(|spares| spares.take(ground)) {
        match build(spare, folder, plan, boot).await {
            // Somebody ended it while it waited.
            Err(error) if error.kind() != io::ErrorKind::TimedOut => {}
            built => return built,
        }
    }
    let nursery = match wardens.spares {
        Some(spares) => spares.nursery(wardens.guest, ground).await,
        None => None,
    };
    let executed = executed.0.take();
    let waiting = Waiting::start(wardens.guest, executed, nursery, ground.clone()).await?;
    build(waiting, folder, plan, boot).await
}

async fn build(
    waiting: Waiting,
    folder: &SessionFolder,
    plan: &Plan,
    boot: &BootSpec,
) -> io::Result<std::result::Result<Up, BootFailure>> {
    let (first, far_first) = StdStream::pair()?;
    let first = match (plan.rung, plan.image.image()) {
        (Rung::Namespaces, None) => {
            Ok(side::connection(first, plan.devices(None), Token(boot.token))?)
        }
        // The warden makes what the files are on, and what that is can be seen only then.
        _ => Err(first),
    };
    let handed = [far_first.as_fd(), folder.lock().as_fd()];
    let report = match tokio::time::timeout(BOOT, waiting.carry(boot, &handed)).await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => return Err(given_up(waiting.warden, error).await),
        Err(_) => return Err(given_up(waiting.warden, io::ErrorKind::TimedOut.into()).await),
    };
    let Waiting { warden, control, .. } = waiting;
    match report {
        BootReport::Ready(ready) => {
            let workspace = ready.image.as_ref().and_then(|image| image.as_ref().ok()).copied();
            let token = Token(boot.token);
            let late = |first| side::connection(first, plan.devices(workspace), token);
            let connection = first.or_else(late)?;
            Ok(Ok(Up { warden, ready, control, connection }))
        }
        BootReport::Failed(failure) => {
            // It ends by itself now; what it held is free when it has.
            drop(warden.ended(BOOT).await);
            Ok(Err(failure))
        }
    }
}

/// Tries one rung; the inner failure is the rung's own.
async fn stand(
    wardens: Wardens<'_>,
    executed: &mut Executed,
    folder: &SessionFolder,
    ground: &Ground<'_>,
    mut plan: Plan,
    resolver: Resolver,
) -> io::Result<std::result::Result<(Plan, Up), BootFailure>> {
    loop {
        let groundwork = plan.groundwork(ground);
        let boot = plan.boot_spec(ground, resolver);
        match attempt(wardens, executed, folder, &plan, &groundwork, &boot).await? {
            Ok(up) => {
                if let Some(spares) = wardens.spares {
                    spares.prepare(wardens.guest, &groundwork);
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
    why
}

/// A note of how the session ended before is no news any more.
fn forget_end(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(END_NAME)) {
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
