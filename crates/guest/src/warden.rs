//! The warden: one small process on the host for each local session, the parent of its jail.
//!
//! It is started with its standard input as a socket to the process that makes the session (its
//! owner), its standard output as that owner's first connection to the guest, and its standard error
//! as the file whose lock says that somebody of the session lives.

pub mod container;
mod control;
mod engine;
mod folder;
mod keep;
mod limits;
mod ports;
mod pump;
mod tree;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::boot::{BootFailure, BootReport, BootSpec, FIRST_RANGE_ID, Ids, Ready, Rung};
use bastide_proto::warden::{Answer, CONTROL_NAME, GUEST_NAME};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal,
    set_child_subreaper, setsid, waitpid,
};

use crate::init::{self, Inheritance};
use crate::jail::{IdMap, Step, StepError, clone_binds};
use crate::launcher::Joining;
use crate::server::kill::kill_descendants;
use crate::sys::{Fork, close_inherited, fork, fork_into};
use crate::without::{self, Wall, is_out};
use crate::{packet, porter};
use control::Control;
use folder::{EndNote, Folder};
use keep::{Event, Keeper};
use limits::Groups;
use ports::Ports;

/// The longest boot specification.
const MAX_SPEC: usize = 1 << 20;

/// How long the owner may take to say what to build, and the sandbox to be built.
const BOOT: Duration = Duration::from_secs(10);

/// The life of a warden.
///
/// # Errors
///
/// Fails if the owner cannot be talked to, or if the sandbox cannot be watched or removed; what goes
/// wrong with the boot is told to the owner.
pub fn run() -> io::Result<()> {
    // Whatever the owner's own parents forgot to close must not reach a sandbox.
    close_inherited()?;
    // Not the owner's terminal's business any more: an interrupt there is for the owner.
    setsid()?;
    let mut streams = Streams::take()?;
    streams.owner.set_read_timeout(Some(BOOT))?;
    let mut spec: BootSpec = read_message(&mut streams.owner)?;
    without::alter(&mut spec);
    let (mut owner, booted) = boot(&spec, streams);
    let report = match &booted {
        Ok(sandbox) => BootReport::Ready(sandbox.ready.clone()),
        Err(failure) => BootReport::Failed(failure.clone()),
    };
    let told = write_message(&mut owner, &report);
    match (booted, told) {
        (Ok(sandbox), Ok(())) => sandbox.keep(owner, &spec),
        // Until its owner lets go of it a session ends with it, also one that is meant to live on:
        // half of one is of no use to anybody.
        (Ok(sandbox), Err(_)) => {
            sandbox.end()?;
            if spec.keep_folder { Ok(()) } else { sandbox.remove() }
        }
        // What is left of a boot that failed is the owner's to remove, unless it is gone.
        (Err(_), Ok(())) => Ok(()),
        (Err(_), Err(_)) if spec.keep_folder => Ok(()),
        (Err(_), Err(_)) => {
            // Nobody of the sandbox ever ran, so everything in it is the caller's.
            rustix::process::chdir("/")?;
            folder::remove(&spec.session_dir, None)
        }
    }
}

/// Removes a session's folder, whatever a sandbox left in it, if no warden is there to do so. Standard
/// input says which ids files in it may belong to, besides the caller's own; it may be empty.
///
/// # Errors
///
/// Fails if something in it can be neither removed nor made removable.
pub fn remove(path: &Path) -> io::Result<()> {
    let mut said = Vec::new();
    io::stdin().take(MAX_SPEC as u64).read_to_end(&mut said)?;
    let ids = match said.is_empty() {
        true => None,
        false => Some(bastide_proto::decode::<Ids>(&said).map_err(io::Error::other)?),
    };
    // Only maps that belong to nobody else are of use here.
    let ids = ids.filter(|ids| matches!(ids, Ids::Subordinate { .. }));
    let ids = ids
        .as_ref()
        .map(|ids| IdMap::claim(ids, path, None))
        .transpose()
        .map_err(io::Error::other)?;
    folder::remove(path, ids.as_ref())
}

/// What a warden is started with.
struct Streams {
    owner: UnixStream,
    first: UnixStream,
    lock: OwnedFd,
}

impl Streams {
    /// Takes over the standard streams. From here on they are nobody's: init and all that follows
    /// inherit them.
    fn take() -> io::Result<Self> {
        let streams = Self {
            owner: io::stdin().as_fd().try_clone_to_owned()?.into(),
            first: io::stdout().as_fd().try_clone_to_owned()?.into(),
            lock: io::stderr().as_fd().try_clone_to_owned()?,
        };
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(streams)
    }
}

/// A sandbox that is up.
struct Sandbox {
    init: Pid,
    init_fd: OwnedFd,
    ready: Ready,
    folder: Folder,
    control: Control,
    porter: OwnedFd,
    /// Whether no namespace ends with its first process.
    on_host: bool,
    /// Held so that everybody can tell that somebody of this session lives.
    _lock: OwnedFd,
    /// Held so that no other session gets the same ids while this one can leave files behind.
    ids: IdMap,
    /// Held because the guest ends when it closes.
    _to_init: OwnedFd,
    groups: Groups,
}

impl Sandbox {
    /// Watches over the sandbox until it has ended, and sees to what is left of it.
    fn keep(mut self, owner: UnixStream, spec: &BootSpec) -> io::Result<()> {
        owner.set_nonblocking(true)?;
        let mut keeper = Keeper {
            init: Some(self.init_fd.try_clone()?),
            owner: Some(owner),
            ports: Ports::new(self.porter.try_clone()?, spec.own_network),
            is_up: true,
            has_ended: false,
        };
        loop {
            match keeper.watch(&mut self.control)? {
                Event::SandboxEnded => {
                    self.note(how_it_ended(self.end()?));
                    // An owner that is still there may want to know; its folder stays as long.
                    if keeper.owner.is_none() {
                        return Ok(());
                    }
                }
                Event::Released => return Ok(()),
                Event::OwnerGone | Event::OwnerGaveUp | Event::OwnerSaysUp => {
                    self.end_if_alive(&keeper)?;
                    return if spec.keep_folder { Ok(()) } else { self.remove() };
                }
                Event::Asked { remove, caller } => {
                    self.end_if_alive(&keeper)?;
                    if !remove && keeper.init.is_some() {
                        self.note(EndNote::Stopped);
                    }
                    control::answer(&caller, &Answer::Ended);
                    // The caller's socket closes when there is nothing more to wait for.
                    return if remove { self.remove() } else { Ok(()) };
                }
            }
        }
    }

    fn end_if_alive(&self, keeper: &Keeper) -> io::Result<()> {
        if keeper.init.is_some() {
            self.end()?;
        }
        Ok(())
    }

    /// Ends the sandbox: with its first process the kernel ends all of them.
    fn end(&self) -> io::Result<WaitStatus> {
        let status = if self.on_host && !is_out(Wall::Ending) {
            end_descendants(self.init)?
        } else {
            kill(&self.init_fd)?;
            bury(self.init)?
        };
        self.ids.release();
        // A group that stays is found by its name.
        drop(self.groups.remove());
        Ok(status)
    }

    /// Notes how the sandbox ended. A folder that cannot be written to, or is gone, has no reader
    /// either.
    fn note(&self, note: EndNote) {
        drop(self.folder.note_end(note));
    }

    fn remove(&self) -> io::Result<()> {
        rustix::process::chdir("/")?;
        self.folder.remove(Some(&self.ids))?;
        self.ids.forget();
        Ok(())
    }
}

fn how_it_ended(status: WaitStatus) -> EndNote {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(_), _) => EndNote::GuestEnded,
        (None, signal) => EndNote::Killed { signal: signal.unwrap_or(libc::SIGKILL) },
    }
}

/// Ends everything that descends from this process, and says how `init` ended. What cannot be ended,
/// because the kernel holds it, is not waited for long.
fn end_descendants(init: Pid) -> io::Result<WaitStatus> {
    const TRIES: usize = 400;
    let own = rustix::process::getpid();
    kill_descendants(own);
    let status = bury(init)?;
    for _ in 0..TRIES {
        kill_descendants(own);
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return Ok(status),
            }
        }
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        // Nothing is waited for but time.
        let _ = rustix::event::poll(&mut [], Some(&pause));
    }
    Ok(status)
}

fn kill(init: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(init, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn bury(init: Pid) -> io::Result<WaitStatus> {
    loop {
        match waitpid(Some(init), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Everything a sandbox needs before it is forked.
struct Prepared {
    ids: IdMap,
    listener: UnixListener,
    logs: Option<OwnedFd>,
    to_init: UnixStream,
    to_warden: UnixStream,
    porter: OwnedFd,
    far_porter: OwnedFd,
    groups: Groups,
}

impl Prepared {
    fn new(spec: &BootSpec) -> Result<Self, StepError> {
        let ids = IdMap::claim(&spec.ids, &spec.session_dir, owner_of(spec.own_folders.first()))?;
        for folder in &spec.own_folders {
            folder::make_around(&spec.session_dir, folder)
                .step(|| format!("make {}", folder.display()))?;
            ids.own_folder(folder)?;
        }
        if spec.rung != Rung::Namespaces {
            // Whatever loses its parent inside must not get away.
            let own = rustix::process::getpid();
            set_child_subreaper(Some(own)).step(|| "look after processes".to_owned())?;
        }
        // No descriptor of the session's folder may be open when init is forked, so this one is let
        // go of again.
        let listener = Folder::open(&spec.session_dir)
            .and_then(|folder| folder.listen(GUEST_NAME))
            .step(|| format!("listen in {}", spec.session_dir.display()))?;
        let logs = ids.guest_folder(&logs_of(spec))?;
        // Init finds the folder for the new root as its current one: it may not look up the path.
        rustix::process::chdir(&spec.root_dir).step(|| "enter the session's folder".to_owned())?;
        let pair = || "make a pair of sockets".to_owned();
        let (to_init, to_warden) = UnixStream::pair().step(pair)?;
        let (porter, far_porter) = porter::pair().step(pair)?;
        let groups = Groups::make(&spec.session_dir, &spec.limits);
        Ok(Self { ids, listener, logs, to_init, to_warden, porter, far_porter, groups })
    }
}

/// Whose a folder is that an earlier boot of the same session made.
fn owner_of(folder: Option<&PathBuf>) -> Option<u32> {
    let found = fs::symlink_metadata(folder?).ok()?;
    Some(found.uid()).filter(|uid| *uid >= FIRST_RANGE_ID)
}

/// Where the guest keeps what commands say.
pub(crate) fn logs_of(spec: &BootSpec) -> PathBuf {
    spec.session_dir.join("logs")
}

/// Builds the sandbox. The owner is handed back whatever happens, to be told.
fn boot(spec: &BootSpec, streams: Streams) -> (UnixStream, Result<Sandbox, BootFailure>) {
    let Streams { owner, first, lock } = streams;
    let prepared = match Prepared::new(spec) {
        Ok(prepared) => prepared,
        Err(error) => return (owner, Err(error.into())),
    };
    let Prepared { ids, listener, logs, to_init, to_warden, porter, far_porter, mut groups } =
        prepared;
    let forked = match spec.rung {
        Rung::Namespaces => fork_into(namespaces(spec)),
        Rung::Landlock(_) | Rung::Unconfined => fork(),
    };
    let init = match forked {
        Ok(Fork::Child) => {
            drop((owner, to_init, porter));
            init::run(Inheritance {
                spec,
                ids: &ids,
                warden: to_warden.into(),
                listener,
                first: Some(first),
                porter: far_porter,
                lock,
                logs,
                groups: Joining { doors: groups.doors, enforced: groups.enforced },
                kills: groups.kills,
            })
        }
        Ok(Fork::Parent(init)) => init,
        Err(error) => {
            drop(groups.remove());
            return (owner, Err(no_namespaces(&error)));
        }
    };
    groups.doors.clear();
    drop((to_warden, far_porter, listener, first, logs));
    let watched = watch_over(spec, &ids, init, &to_init);
    if watched.is_err() {
        drop(groups.remove());
    }
    let by_groups = groups.enforced.clone();
    let sandbox = watched.map(|Watched { init_fd, ready, folder, control }| Sandbox {
        init,
        init_fd,
        ready: Ready { enforced: by_groups.or(ready.enforced), ..ready },
        folder,
        control,
        porter,
        on_host: spec.rung != Rung::Namespaces,
        _lock: lock,
        ids,
        _to_init: to_init.into(),
        groups,
    });
    (owner, sandbox)
}

/// What the warden of a sandbox that is up holds.
struct Watched {
    init_fd: OwnedFd,
    ready: Ready,
    folder: Folder,
    control: Control,
}

/// Sees the sandbox through its boot; ends it if that fails.
fn watch_over(
    spec: &BootSpec,
    ids: &IdMap,
    init: Pid,
    to_init: &UnixStream,
) -> Result<Watched, BootFailure> {
    let init_fd = pidfd_open(init, PidfdFlags::empty()).step(|| "watch the sandbox".to_owned())?;
    let up = || -> Result<_, BootFailure> {
        // Init is ours, but what it does may take for ever: a file system that does not answer.
        to_init.set_read_timeout(Some(BOOT)).step(|| "watch the sandbox".to_owned())?;
        let ready = prepare(spec, ids, init, to_init)?;
        let step = || format!("listen in {}", spec.session_dir.display());
        let folder = Folder::open(&spec.session_dir).step(step)?;
        let control = folder.listen(CONTROL_NAME).and_then(Control::new).step(step)?;
        Ok((ready, folder, control))
    };
    match up() {
        Ok((ready, folder, control)) => Ok(Watched { init_fd, ready, folder, control }),
        Err(failure) => {
            // The failure is what the owner must hear.
            let ended = match spec.rung {
                Rung::Namespaces => kill(&init_fd).and_then(|()| bury(init)),
                Rung::Landlock(_) | Rung::Unconfined => end_descendants(init),
            };
            drop(ended.inspect(|_| ids.release()));
            Err(failure)
        }
    }
}

/// Does from outside what init cannot do from inside, and waits for init's report.
fn prepare(
    spec: &BootSpec,
    ids: &IdMap,
    init: Pid,
    to_init: &UnixStream,
) -> Result<Ready, BootFailure> {
    ids.write(init).map_err(|error| {
        let no_range = matches!(ids, IdMap::Subordinate { .. });
        BootFailure { no_range, ..BootFailure::from(error) }
    })?;
    let binds = match ids {
        IdMap::Range { .. } => {
            let path = format!("/proc/{}/ns/user", init.as_raw_nonzero());
            let namespace = File::open(path).step(|| "open the user namespace".to_owned())?;
            clone_binds(&spec.steps, Some(namespace.as_fd()))?
        }
        IdMap::Subordinate { .. } | IdMap::Host { .. } | IdMap::Own { .. } => Vec::new(),
    };
    let talk = || "talk to the sandbox's first process".to_owned();
    for some in binds.chunks(packet::MAX_FDS) {
        let fds: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        packet::send(to_init, &(), &fds).step(talk)?;
    }
    packet::send(to_init, &(), &[]).step(talk)?;
    match packet::receive(to_init).step(talk)? {
        Some((BootReport::Ready(ready), guest)) => {
            let init_pid = init.as_raw_pid().unsigned_abs();
            let guest_pid = guest.first().map_or(Ok(0), pid_outside);
            let guest_pid = guest_pid.step(|| "find the guest".to_owned())?;
            Ok(Ready { init_pid, guest_pid, ..ready })
        }
        Some((BootReport::Failed(failure), _)) => Err(failure),
        None => Err(StepError::from_errno("start inside the sandbox", libc::ECHILD).into()),
    }
}

/// How the host numbers a process that init numbers differently: the kernel translates.
fn pid_outside(process: &OwnedFd) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn namespaces(spec: &BootSpec) -> libc::c_int {
    let always =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    let others = [
        (libc::CLONE_NEWPID, !is_out(Wall::Processes)),
        (libc::CLONE_NEWIPC, !is_out(Wall::Ipc)),
        (libc::CLONE_NEWNET, spec.own_network),
    ];
    others.into_iter().filter(|(_, wanted)| *wanted).fold(always, |all, (flag, _)| all | flag)
}

fn no_namespaces(error: &io::Error) -> BootFailure {
    BootFailure {
        step: "make the sandbox's namespaces".to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        no_user_namespaces: true,
        no_range: false,
    }
}

fn read_message<T: serde::de::DeserializeOwned>(from: &mut UnixStream) -> io::Result<T> {
    let mut header = [0; 4];
    from.read_exact(&mut header)?;
    let length = usize::try_from(u32::from_le_bytes(header)).map_err(io::Error::other)?;
    if length > MAX_SPEC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    bastide_proto::decode(&body).map_err(io::Error::other)
}

fn write_message<T: serde::Serialize>(to: &mut UnixStream, message: &T) -> io::Result<()> {
    to.write_all(&packet::encode(message)?)
}
