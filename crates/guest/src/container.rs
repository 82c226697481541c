//! The first process of a container: meets the host, receives what the session is, starts guest and launcher,
//! and from then on only reaps. It has one thread for all its life, so it may fork.
//!
//! The container is the jail; what is built here are only the walls between commands and guest.

mod identity;
mod pod;
mod probe;

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bastide_proto::boot::{BootFailure, Enforced, InodeId, UserAndGroup};
use bastide_proto::container::{
    ContainerReady, ContainerReport, ContainerSpec, FOLDER, HOST_PATH, RUN_PATH,
};
use bastide_proto::pod::{EXPIRED_CODE, OWN_PATH, PodLease, PodReport};
use bastide_proto::warden::GUEST_SOCKET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, getpid, set_child_subreaper, setsid};
use serde::de::DeserializeOwned;

use crate::accounts::{Identity, UnnamedGroup};
use crate::init::InitRequest;
use crate::jail::container::{
    become_user, harden_first, harden_guest, raise_walls, reduce_first, reduce_guest,
};
use crate::jail::{
    FilterOptions, LimitContext, ProcessCount, Processors, Protected, Shared, StepContext,
    StepError, WallsReport, WriteTarget, limit_commands, lower_oom_score,
};
use crate::removable_walls::{Wall, is_removed};
use crate::server::{self, Endpoints, ServerConfig, UserPolicy};
use crate::supervisor::probe_subreaper;
use crate::sys::{Fork, block_signals, close_inherited, exit_now, fork, ignore_sigchld};
use crate::{launcher, packet};

use identity::DefaultUser;

/// How long the host may take to come and say what the session is.
const ARRIVAL: Duration = Duration::from_secs(60);

/// How long it may take to say it.
const SPEAK: Duration = Duration::from_secs(10);

/// Why somebody cannot be anybody else in a container that was started as one user.
const ONE_USER: &str = "its container runs as one user only";

/// The same in a pod, and what opens more.
const ONE_USER_POD: &str =
    "its pod runs as one user only; make the session with `KubernetesOptions::many_users`";

/// An engine gives no user or file system apart.
const OF_ENGINE: LimitContext = LimitContext {
    count: ProcessCount::Shared,
    own_root: false,
    // The engine's own limit holds.
    unasked_pids: None,
    writes_elsewhere: false,
};

/// How the first process and the host meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rendezvous {
    /// It calls the host, in a folder they share.
    Calls,
    /// It waits for the host, which comes by `dial`.
    Waits,
    /// As well, in a pod, where it may do so only once.
    Pod(HostWait),
}

/// For how long the first process of a pod waits for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostWait {
    /// As long as it takes to boot.
    Short,
    /// Until somebody comes.
    Endless,
}

/// A host that has said what the session is.
struct HostConnection {
    host: UnixStream,
    spec: ContainerSpec,
    /// What else a pod is told.
    pod: Option<pod::PodPlan>,
    /// Where other hosts connect.
    listener: UnixListener,
}

/// The life of a container's first process.
///
/// # Errors
///
/// Fails if nobody says what the session is, or if guest and launcher cannot be started.
pub fn run(rendezvous: Rendezvous) -> io::Result<()> {
    close_inherited()?;
    block_signals();
    // With SIGCHLD ignored the kernel reaps the children itself.
    ignore_sigchld();
    // What loses its supervisor falls to this process, also where it is not the first of all: in a microVM
    // somebody else is. A kernel that knows no reapers says so when a supervisor asks.
    let _ = set_child_subreaper(Some(getpid()));
    let HostConnection { host, spec, pod, listener } = match rendezvous {
        Rendezvous::Calls => call()?,
        Rendezvous::Waits => wait()?,
        Rendezvous::Pod(patience) => match pod::wait(patience)? {
            Some(connection) => connection,
            // The session that was here has ended; its files are not for another one.
            None => return Ok(()),
        },
    };
    if pod.is_some() {
        lower_oom_score();
    }
    let mut to_host = host.try_clone()?;
    match start(&spec, pod.as_ref(), listener, host) {
        Ok(StartedContainer { up, to_guest, who, others }) => {
            to_host.write_all(&match &pod {
                Some(pod) => packet::encode(&pod.report(up))?,
                None => packet::encode(&ContainerReport::Up(up))?,
            })?;
            drop(to_host);
            match start_launchers(&spec, &who, to_guest, &others) {
                // A container's end is told by who is left, and that of a pod by its code alone.
                GuestEnd::Unexpected if pod.is_some() => Err(io::ErrorKind::BrokenPipe.into()),
                GuestEnd::Expired => exit_now(EXPIRED_CODE),
                GuestEnd::Unexpected | GuestEnd::Over => Ok(()),
            }
        }
        Err(failure) => {
            to_host.write_all(&match &pod {
                Some(_) => packet::encode(&PodReport::Failed(failure))?,
                None => packet::encode(&ContainerReport::Failed(failure))?,
            })?;
            Err(io::ErrorKind::Other.into())
        }
    }
}

/// How a guest ended.
enum GuestEnd {
    /// Nobody was heard of for too long.
    Over,
    /// The time somebody gave the session is over.
    Expired,
    /// It was ended, or it failed.
    Unexpected,
}

/// Starts launchers as the guest asks for them, until it ends: its socket closes then. With this
/// process the kernel ends every other one of the container.
fn start_launchers(
    spec: &ContainerSpec,
    default: &DefaultUser,
    to_guest: OwnedFd,
    others: &[Pid],
) -> GuestEnd {
    while let Ok(Some((message, mut sockets))) = packet::receive(&to_guest) {
        let (who, requests) = match (message, sockets.pop()) {
            (InitRequest::Launch(who), Some(requests)) => (who, requests),
            (InitRequest::Over, _) => return GuestEnd::Over,
            (InitRequest::Expired, _) => return GuestEnd::Expired,
            (InitRequest::Up(_) | InitRequest::Launch(_) | InitRequest::Namespaces, _) => continue,
        };
        match fork() {
            Ok(Fork::Child) => {
                drop((to_guest, sockets));
                let who = who.as_ref().unwrap_or(&default.who);
                launcher::serve(enter(spec, who, others), &requests)
            }
            // The guest sees its end of the socket close.
            Ok(Fork::Parent(_)) | Err(_) => {}
        }
    }
    GuestEnd::Unexpected
}

/// Calls the host, which says what the session is and hands over the socket it listens on. So nothing
/// is ever made in the folder from in here.
fn call() -> io::Result<HostConnection> {
    let host = UnixStream::connect(Path::new(HOST_PATH).join(GUEST_SOCKET))?;
    host.set_read_timeout(Some(ARRIVAL))?;
    let (spec, mut sockets) = packet::receive(&host)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let listener = sockets.pop().ok_or(io::ErrorKind::InvalidData)?;
    host.set_read_timeout(None)?;
    Ok(HostConnection { host, spec, pod: None, listener: listener.into() })
}

/// Listens, and waits for the host. Nobody else is here yet.
fn wait() -> io::Result<HostConnection> {
    let listener = listen(Path::new(RUN_PATH))?;
    let (host, spec) = await_host(&listener, Some(ARRIVAL))?;
    Ok(HostConnection { host, spec, pod: None, listener })
}

fn listen(folder: &Path) -> io::Result<UnixListener> {
    let path = folder.join(GUEST_SOCKET);
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Waits for the first host that says what the session is.
fn await_host<T: DeserializeOwned>(
    listener: &UnixListener,
    most: Option<Duration>,
) -> io::Result<(UnixStream, T)> {
    let deadline = most.map(|most| Instant::now() + most);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let most = left.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let mut wait = [PollFd::new(listener, PollFlags::IN)];
        if left.is_some_and(|left| left.is_zero()) || poll(&mut wait, most.as_ref())? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let (host, _) = listener.accept()?;
        host.set_read_timeout(Some(SPEAK))?;
        // One that only looks whether somebody listens says nothing.
        if let Ok(Some((spec, _))) = packet::receive(&host) {
            host.set_read_timeout(None)?;
            return Ok((host, spec));
        }
    }
}

/// A container whose processes are up.
struct StartedContainer {
    up: ContainerReady,
    to_guest: OwnedFd,
    who: DefaultUser,
    /// The guest and the first launcher.
    others: Vec<Pid>,
}

fn start(
    spec: &ContainerSpec,
    pod: Option<&pod::PodPlan>,
    listener: UnixListener,
    first: UnixStream,
) -> Result<StartedContainer, BootFailure> {
    check_granted(&spec.identities)?;
    harden_first(shared_by(spec), spec.filtered, spec.new_privileges)?;
    let who = DefaultUser::of(spec.user.as_deref())?;
    if let Some(root) = spec.writable.first() {
        make_workspace(root, &who)?;
    }
    make_granted(spec, &who)?;
    let own = Path::new(if pod.is_some() { OWN_PATH } else { FOLDER });
    let logs = open_logs(own, spec.writable.first(), &who)?;
    let oom_events = open_oom_events();
    let pair = || UnixStream::pair().step(|| "make a pair of sockets".to_owned());
    let (launcher, launcher_end) = pair()?;
    let (to_guest, init) = pair()?;
    let guest = match fork().step(|| "fork the guest".to_owned())? {
        Fork::Child => {
            drop((launcher_end, to_guest));
            let (warden, port_channel) = (None, None);
            let first = Some(first);
            let endpoints = Endpoints {
                listener,
                first,
                launcher,
                init,
                warden,
                port_channel,
                logs,
                oom_events,
                egress_listeners: None,
            };
            run_guest(spec, pod.map(|pod| pod.lease), &who, endpoints)
        }
        Fork::Parent(guest) => guest,
    };
    drop((launcher, init, listener, first, logs, oom_events));
    let launcher = match fork().step(|| "fork the launcher".to_owned())? {
        Fork::Child => {
            drop(to_guest);
            launcher::serve(enter(spec, &who.who, &[guest]), &launcher_end.into())
        }
        Fork::Parent(launcher) => launcher,
    };
    drop(launcher_end);
    reduce_first()?;
    let to_guest = OwnedFd::from(to_guest);
    let received = packet::receive(&to_guest).step(|| "start the guest".to_owned())?;
    let Some((InitRequest::Up(walls), _)) = received else {
        let step = "start the guest, which ended without a word";
        return Err(StepError::from_errno(step, libc::EPIPE).into());
    };
    let walls = walls?;
    let up = ContainerReady {
        user: UserAndGroup { uid: who.who.uid, gid: who.who.gid },
        user_name: who.name.clone(),
        many_users: who.many_users,
        enforced: walls.enforced,
        landlock_abi: walls.landlock_abi,
        has_subreaper: walls.has_subreaper,
        filtered: spec.filtered && !spec.new_privileges,
    };
    Ok(StartedContainer { up, to_guest, who, others: vec![guest, launcher] })
}

/// Makes the workspace if it is missing, for whom commands run as. One that the engine or a build made for
/// them, with nothing in it yet, is theirs too.
fn make_workspace(root: &str, who: &DefaultUser) -> Result<(), StepError> {
    let root = Path::new(root);
    let step = || format!("make the workspace {}", root.display());
    if who.many_users && is_nobodys(root) {
        return chown(root, Some(who.who.uid), Some(who.who.gid)).step(step);
    }
    make_folder(root, Some(who)).step(step)?;
    if root.is_dir() { Ok(()) } else { Err(StepError::from_errno(&step(), libc::ENOTDIR)) }
}

/// Refuses what the engine bound in if it is another file than the host meant: the engine follows a path of the host by
/// itself, whatever lies there by then.
fn check_granted(identities: &[(String, InodeId)]) -> Result<(), StepError> {
    for (path, meant) in identities {
        let found = fs::symlink_metadata(path).step(|| format!("find the granted {path}"))?;
        if (found.dev(), found.ino()) != (meant.device, meant.inode) {
            let step = format!("grant {path}: the engine bound another file than was granted");
            return Err(StepError::from_errno(&step, libc::ESTALE));
        }
    }
    Ok(())
}

/// Makes folders that are granted and that the image does not have. One that can be written to belongs to
/// whom commands run as.
fn make_granted(spec: &ContainerSpec, who: &DefaultUser) -> Result<(), StepError> {
    let writable = spec.writable.iter().skip(1).map(|path| (path, Some(who)));
    let readable = spec.readable.iter().map(|path| (path, None));
    for (path, owner) in writable.chain(readable) {
        make_folder(Path::new(path), owner).step(|| format!("make the granted folder {path}"))?;
    }
    Ok(())
}

/// Makes a folder with all that leads to it, as far as it is missing.
fn make_folder(path: &Path, owner: Option<&DefaultUser>) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|path| !path.exists()).collect();
    for path in missing.into_iter().rev() {
        fs::DirBuilder::new().mode(0o755).create(path)?;
        if let Some(DefaultUser { who, .. }) = owner {
            chown(path, Some(who.uid), Some(who.gid))?;
        }
    }
    Ok(())
}

/// Whether a folder is root's and holds nothing but what is mounted there.
fn is_nobodys(folder: &Path) -> bool {
    let Ok(own) = folder.symlink_metadata() else { return false };
    let Ok(mut entries) = fs::read_dir(folder) else { return false };
    // Layered file systems give files the device of their layer, but not folders.
    let is_mounted = |entry: io::Result<fs::DirEntry>| {
        let found = entry.and_then(|entry| entry.metadata());
        found.is_ok_and(|found| found.is_dir() && found.dev() != own.dev())
    };
    own.is_dir() && own.uid() == 0 && entries.all(is_mounted)
}

/// The folder for what commands say. Where the container's own files cannot be written to, it is the
/// workspace: the files have no names.
fn open_logs(
    own: &Path,
    workspace: Option<&String>,
    who: &DefaultUser,
) -> Result<OwnedFd, StepError> {
    let logs = make_logs(own, who).or_else(|error| match workspace {
        Some(workspace) => open_folder(Path::new(workspace)),
        None => Err(error),
    });
    logs.step(|| "make the folder for what commands say".to_owned())
}

/// A folder of ours in the container's own files, which only the first process's user may enter.
fn make_logs(own: &Path, who: &DefaultUser) -> io::Result<OwnedFd> {
    let path = own.join("logs");
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let folder = open_folder(&path)?;
    if who.many_users {
        let (uid, gid) = who.ids();
        rustix::fs::fchown(&folder, Some(uid), Some(gid))?;
    }
    Ok(folder)
}

fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Where the kernel counts OOM kills, in either version of cgroups.
fn open_oom_events() -> Option<OwnedFd> {
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
        .iter()
        .find_map(|path| fs::File::open(path).ok().map(OwnedFd::from))
}

/// Goes behind the walls, as whom commands run as.
fn enter(spec: &ContainerSpec, who: &Identity, others: &[Pid]) -> Result<WallsReport, StepError> {
    // A group of its own, so that no signal to somebody's group reaches it.
    let launcher = setsid().step(|| "start a session of processes".to_owned())?;
    // The ids are the host's, and so is the count of their processes; the engine limits those.
    let enforced = limit_commands(&spec.limits, &Enforced::default(), OF_ENGINE)?;
    if rustix::process::geteuid().is_root() {
        become_user(who)?;
    }
    let first = rustix::process::getppid();
    let protected = Protected(others.iter().copied().chain([launcher]).chain(first).collect());
    let shared = shared_by(spec);
    let writes = match spec.writes_to_host && !is_removed(Wall::SetIdModes) {
        true => WriteTarget::OnHost,
        false => WriteTarget::Inside,
    };
    let options = FilterOptions { shared, processors: Processors::Free, writes };
    let landlock_abi = match spec.new_privileges {
        true => 0,
        false => raise_walls(spec.filtered.then_some(&protected), options)?,
    };
    let has_subreaper = probe_subreaper();
    Ok(WallsReport { enforced, landlock_abi, has_subreaper })
}

/// What commands share with others, or may do that is open to nobody else.
fn shared_by(spec: &ContainerSpec) -> Shared {
    if spec.mounts { Shared::Mounting } else { Shared::Nothing }
}

fn run_guest(
    spec: &ContainerSpec,
    lease: Option<PodLease>,
    who: &DefaultUser,
    endpoints: Endpoints,
) -> ! {
    let served = ServerConfig {
        token: spec.token,
        writable: spec.writable.clone(),
        readable: spec.readable.clone(),
        // They were compared before anything started, and are mounts that nobody inside can move.
        identities: Vec::new(),
        writes_to_host: spec.writes_to_host,
        resolver: spec.resolver,
        user_policy: UserPolicy {
            own: who.who.clone(),
            home: who.home.clone(),
            single_user_reason: (!who.many_users)
                .then(|| if lease.is_some() { ONE_USER_POD } else { ONE_USER }.to_owned()),
            unnamed_group: UnnamedGroup::InRootsGroup,
        },
        disk: spec.limits.disk,
        // The host may be anybody inside; the token tells.
        caller: None,
        has_own_groups: true,
        lease,
        // Root of the container can, by its own rights.
        overrides_modes: false,
    };
    let alone = setsid().step(|| "start a session of processes".to_owned());
    let confined = alone.and_then(|_| reduce_guest()).and_then(|()| who.use_files());
    let served = match confined.and_then(|()| harden_guest(spec.filtered)) {
        Ok(()) => server::run(&served, endpoints),
        Err(error) => Err(server::give_up(&endpoints.init, error)),
    };
    exit_now(i32::from(served.is_err()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_another_file_than_was_granted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("granted");
        fs::create_dir(&path).unwrap();
        let found = fs::metadata(&path).unwrap();
        let meant = InodeId { device: found.dev(), inode: found.ino() };
        let name = path.display().to_string();
        assert!(check_granted(&[(name.clone(), meant)]).is_ok());
        // What the engine finds when it follows the path itself.
        fs::rename(&path, folder.path().join("old")).unwrap();
        std::os::unix::fs::symlink("/", &path).unwrap();
        assert!(check_granted(&[(name, meant)]).is_err());
    }
}
