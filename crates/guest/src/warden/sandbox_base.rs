//! The base of a sandbox: its ids, its namespaces and its first process.
//!
//! None of it depends on the session, so it can be there before the session is.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use bastide_proto::boot::{
    BaseSpec, BootFailure, BootReport, BootSpec, Enforced, FIRST_RANGE_ID, RootStep, Rung,
    SandboxReady, UserAndGroup,
};
use bastide_proto::mounts::KeeperSpec;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

use super::BOOT;
use super::root_template::{ForkFailure, RootTemplate, without_template};
use crate::init::{self, InitArguments, SessionFds, Task};
use crate::jail::{BindOverride, IdMap, StepContext, StepError, clone_binds};
use crate::removable_walls::{Wall, is_removed};
use crate::server::kill::{end_session, kill_descendants};
use crate::sys::{Fork, fork, fork_into};
use crate::{packet, port_channel};

/// The first process of a sandbox, and what it was given.
pub(super) struct SandboxBase {
    /// Held so that no other session gets the same ids while this one can leave files behind.
    pub(super) ids: IdMap,
    init: Pid,
    pub(super) init_fd: OwnedFd,
    /// Held also because the guest ends when it closes.
    to_init: UnixStream,
    pub(super) port_channel: OwnedFd,
    /// Whether no namespace ends with its first process.
    on_host: bool,
    /// The namespace its ids are in, where files are shown with their owners shifted.
    shifted: Option<File>,
}

impl SandboxBase {
    /// Forks the first process of a sandbox and does from outside what that cannot do from inside. The
    /// owner's socket is handed back whatever happens. `session` is only asked for its ids on the host; a
    /// `template` must be of this base.
    pub(super) fn build(
        base_spec: &BaseSpec,
        session: Option<&BootSpec>,
        template: Option<RootTemplate>,
        owner: UnixStream,
    ) -> (UnixStream, Result<Self, BootFailure>) {
        let prepared = match Prepared::new(base_spec, session) {
            Ok(prepared) => prepared,
            Err(error) => return (owner, Err(error.into())),
        };
        let Prepared { ids, to_init, to_warden, port_channel, far_port_channel } = prepared;
        let on_host = base_spec.rung != Rung::Namespaces;
        let flags = namespaces(base_spec.own_network);
        let forked = match template {
            _ if on_host => without_template(fork()),
            Some(template) => template.fork_into(flags),
            None => without_template(fork_into(flags)),
        };
        let (init, has_template) = match forked {
            Ok((Fork::Child, has_template)) => {
                drop((owner, to_init, port_channel));
                let (warden, port_channel) = (to_warden.into(), far_port_channel);
                init::run(InitArguments {
                    base_spec: base_spec.clone(),
                    ids,
                    warden,
                    port_channel,
                    has_template,
                })
            }
            Ok((Fork::Parent(init), has_template)) => (init, has_template),
            Err(ForkFailure::Refused(error)) => return (owner, Err(no_namespaces(&error))),
            Err(ForkFailure::Lost(error)) => {
                let step = format!("come back from the pattern of the root ({error})");
                return (owner, Err(StepError::from_errno(&step, libc::EIO).into()));
            }
        };
        drop((to_warden, far_port_channel));
        let watched = pidfd_open(init, PidfdFlags::empty()).step(|| "watch the sandbox".to_owned());
        let init_fd = match watched {
            Ok(init_fd) => init_fd,
            // Without its warden's socket it ends by itself.
            Err(error) => return (owner, Err(error.into())),
        };
        let mut base = Self { ids, init, init_fd, to_init, port_channel, on_host, shifted: None };
        match base.set_up_from_outside(if has_template { &[] } else { &base_spec.steps }) {
            Ok(()) => (owner, Ok(base)),
            Err(failure) => {
                // The failure is what the owner must hear.
                drop(base.end());
                (owner, Err(failure))
            }
        }
    }

    /// Writes the maps of ids, and hands over what only the host can reach.
    fn set_up_from_outside(&mut self, steps: &[RootStep]) -> Result<(), BootFailure> {
        // Init is ours, but what it does may take for ever: a file system that does not answer.
        self.to_init.set_read_timeout(Some(BOOT)).step(|| "watch the sandbox".to_owned())?;
        self.ids.write(self.init).map_err(|error| {
            // Only where the machine gives no range, not where there is no room to ask for one.
            let no_range = matches!(self.ids, IdMap::Subordinate { .. }) && error.is_missing();
            BootFailure { no_range, ..BootFailure::from(error) }
        })?;
        if self.ids.are_shifted() {
            let path = format!("/proc/{}/ns/user", self.init.as_raw_nonzero());
            let opened = File::open(path).step(|| "open the user namespace".to_owned())?;
            self.shifted = Some(opened);
        }
        Ok(self.send_binds(&self.clone_binds(steps, None)?)?)
    }

    /// Copies the mounts of every bind among the steps, where init cannot.
    fn clone_binds(
        &self,
        steps: &[RootStep],
        bind_override: Option<BindOverride<'_>>,
    ) -> Result<Vec<OwnedFd>, StepError> {
        match self.ids.are_shifted() {
            true => clone_binds(steps, &|owner| self.namespace_of(owner).map(Some), bind_override),
            false => Ok(Vec::new()),
        }
    }

    /// Hands copies of mounts over. The last packet has none.
    fn send_binds(&self, binds: &[OwnedFd]) -> Result<(), StepError> {
        for some in binds.chunks(packet::MAX_FDS) {
            let fds: Vec<_> = some.iter().map(AsFd::as_fd).collect();
            packet::send(&self.to_init, &(), &fds).step(talk)?;
        }
        packet::send(&self.to_init, &(), &[]).step(talk)
    }

    /// The user namespace by which files of `owner` on disk, or of everybody, are shown inside, where
    /// they are shown as somebody else's.
    pub(super) fn namespace_of(&self, owner: Option<UserAndGroup>) -> Result<File, StepError> {
        if let Some(owner) = owner.filter(|_| self.ids.has_one()) {
            return self.ids.namespace_of(owner);
        }
        let step = || "shift the owners of files".to_owned();
        let shifted = self.shifted.as_ref().ok_or(Errno::PERM).step(step)?;
        shifted.try_clone().step(step)
    }

    /// Gives the sandbox its session, and waits until its guest is up. `workspace` takes the place of the
    /// folder that would be it.
    pub(super) fn boot_session(
        &self,
        spec: &BootSpec,
        session_fds: &SessionFds,
        enforced: &Enforced,
        workspace: Option<BindOverride<'_>>,
    ) -> Result<SandboxReady, BootFailure> {
        let task = Task {
            session: spec.clone(),
            enforced: enforced.clone(),
            has_logs: session_fds.logs.is_some(),
            has_oom_events: session_fds.oom_events.is_some(),
            has_egress: session_fds.egress.is_some(),
        };
        // An init that has its session waits for all of these, and could not say what went wrong here.
        let binds = self.clone_binds(&spec.steps, workspace).map_err(StepError::of_session)?;
        let given = packet::send(&self.to_init, &task, &session_fds.as_fds())
            .step(talk)
            .and_then(|()| self.send_binds(&binds));
        // An init that failed before says why, and hears nothing any more.
        match (packet::receive(&self.to_init).step(talk), given) {
            (Ok(Some((BootReport::Failed(failure), _))), _) => Err(failure),
            (_, Err(error)) | (Err(error), _) => Err(error.into()),
            (Ok(Some((BootReport::Ready(ready), guest))), Ok(())) => {
                let init_pid = self.init.as_raw_pid().unsigned_abs();
                let guest_pid = guest.first().map_or(Ok(0), pid_outside);
                let guest_pid = guest_pid.step(|| "find the guest".to_owned())?;
                Ok(SandboxReady { init_pid, guest_pid, ..ready })
            }
            (Ok(None), Ok(())) => {
                let step = "start the sandbox, whose first process ended without a word";
                Err(StepError::from_errno(step, libc::EPIPE).into())
            }
        }
    }

    /// What the keeper of a session's mounts is told; nothing where the sandbox has no mounts of its own.
    pub(super) fn keeper_spec(&self, spec: &BootSpec) -> Option<KeeperSpec> {
        let workspace = spec.writable.first().filter(|_| !self.on_host)?;
        Some(KeeperSpec {
            session_dir: spec.session_dir.clone(),
            workspace: workspace.clone(),
            inside: self.ids.inside(),
            disk: spec.limits.disk,
        })
    }

    /// Ends the sandbox: with its first process the kernel ends all of them.
    pub(super) fn end(&self) -> io::Result<WaitStatus> {
        let status = if self.on_host && !is_removed(Wall::Ending) {
            end_descendants(self.init, &self.init_fd)?
        } else {
            kill(&self.init_fd)?;
            reap(self.init)?
        };
        self.ids.release();
        Ok(status)
    }
}

/// Everything that is there before the first process is forked.
struct Prepared {
    ids: IdMap,
    to_init: UnixStream,
    to_warden: UnixStream,
    port_channel: OwnedFd,
    far_port_channel: OwnedFd,
}

impl Prepared {
    fn new(base_spec: &BaseSpec, session: Option<&BootSpec>) -> Result<Self, StepError> {
        // Whoever clears temporary files may have left some of them.
        let before = session.and_then(|session| session.own_folders.iter().find_map(owner_of));
        let session_dir = session.map(|session| session.session_dir.as_path());
        let ids = IdMap::claim(&base_spec.ids, session_dir, before)?;
        if base_spec.rung != Rung::Namespaces {
            // Whatever loses its parent inside must not get away.
            let own = rustix::process::getpid();
            set_child_subreaper(Some(own)).step(|| "look after processes".to_owned())?;
        }
        // Init finds the folder for the new root as its current one: it may not look up the path.
        rustix::process::chdir(&base_spec.mount_dir)
            .step(|| format!("enter {}", base_spec.mount_dir.display()))
            .map_err(StepError::of_session)?;
        let pair = || "make a pair of sockets".to_owned();
        let (to_init, to_warden) = UnixStream::pair().step(pair)?;
        let (port_channel, far_port_channel) = port_channel::pair().step(pair)?;
        Ok(Self { ids, to_init, to_warden, port_channel, far_port_channel })
    }
}

/// Whose a folder is that an earlier boot of the same session made.
fn owner_of(folder: &PathBuf) -> Option<u32> {
    let found = fs::symlink_metadata(folder).ok()?;
    Some(found.uid()).filter(|uid| *uid >= FIRST_RANGE_ID)
}

fn talk() -> String {
    "talk to the sandbox's first process".to_owned()
}

fn namespaces(own_network: bool) -> libc::c_int {
    let always =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWUTS | libc::CLONE_NEWCGROUP;
    let others = [
        (libc::CLONE_NEWPID, !is_removed(Wall::Processes)),
        (libc::CLONE_NEWIPC, !is_removed(Wall::Ipc)),
        (libc::CLONE_NEWNET, own_network),
    ];
    others.into_iter().filter(|(_, wanted)| *wanted).fold(always, |all, (flag, _)| all | flag)
}

fn no_namespaces(error: &io::Error) -> BootFailure {
    BootFailure {
        step: "make the sandbox's namespaces".to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        no_namespaces: true,
        of_session: false,
        hint: None,
        no_range: false,
    }
}

/// How the host numbers a process that init numbers differently: the kernel translates.
fn pid_outside(process: &OwnedFd) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    pid.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Ends everything that descends from this process, and says how `init` ended. What cannot be ended,
/// because the kernel holds it, is not waited for long.
fn end_descendants(init: Pid, init_fd: &OwnedFd) -> io::Result<WaitStatus> {
    const TRIES: usize = 400;
    let own = rustix::process::getpid();
    // While init lives, whatever loses its parent falls to it and is collected there.
    end_session(init);
    kill(init_fd)?;
    let status = reap(init)?;
    // What init left, if it was gone before.
    end_session(own);
    for _ in 0..TRIES {
        kill_descendants(own);
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
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
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn reap(init: Pid) -> io::Result<WaitStatus> {
    loop {
        match waitpid(Some(init), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
