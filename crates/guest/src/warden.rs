//! The warden: one small process on the host for each local session, the parent of its jail.
//!
//! It is started with its standard input as a socket to the process that makes the session, its owner;
//! or a zygote forks it, which that process started before.
//! It receives the sandbox's base first and builds that; the session may come much later.

pub mod container;
mod container_net;
mod control;
mod egress;
mod engine;
mod event_loop;
mod exit_record;
mod folder;
mod image;
mod lease;
mod limits;
mod mount_points;
mod mounts;
mod ports;
mod pump;
mod root_template;
mod sandbox_base;
mod tree;
pub mod zygote;

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::boot::{
    BaseSpec, BootFailure, BootReport, BootSpec, EgressBoot, Ids, Rung, SandboxReady,
};
use bastide_proto::warden::{CONTROL_SOCKET, ExpiryAction, GUEST_SOCKET, WardenResponse};
use rustix::process::{WaitStatus, setsid};

use crate::init::SessionFds;
use crate::jail::{IdMap, StepContext, StepError};
use crate::sys::close_inherited;
use crate::{packet, removable_walls};
use control::ControlSocket;
use egress::{Egress, EgressFds};
use event_loop::{Event, EventLoop};
use exit_record::ExitRecord;
use folder::Folder;
use image::Workspace;
use lease::Lease;
use limits::Cgroups;
use mount_points::MountPointLocks;
use mounts::Mounts;
use ports::Ports;
use root_template::RootTemplate;
use sandbox_base::SandboxBase;

/// The longest description of whose files are to be removed.
const MAX_IDS: u64 = 1 << 20;

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
    let owner = take_owner()?;
    close_standard_streams()?;
    serve(owner, None)
}

/// The life of a warden that has its owner, and nothing else open but a template.
fn serve(owner: UnixStream, template: Option<RootTemplate>) -> io::Result<()> {
    // Not the owner's terminal's business any more: an interrupt there is for the owner.
    setsid()?;
    owner.set_read_timeout(Some(BOOT))?;
    let Some((mut base_spec, _)) = packet::receive::<BaseSpec>(&owner)? else { return Ok(()) };
    removable_walls::alter_base_spec(&mut base_spec);
    let template = template.filter(|template| template.matches(&base_spec));
    let (owner, early) = match base_spec.rung {
        Rung::Namespaces => {
            let (owner, laid) = SandboxBase::build(&base_spec, None, template, owner);
            (owner, Some(laid))
        }
        // The base of these is the session's own.
        Rung::Landlock(_) | Rung::Unconfined => (owner, None),
    };
    // A session may be long in coming. None will without its owner, whose end of the socket closes.
    owner.set_read_timeout(None)?;
    let (mut spec, streams) = match packet::receive::<BootSpec>(&owner) {
        Ok(Some((mut spec, fds))) => {
            removable_walls::alter_session(&base_spec, &mut spec);
            let streams = Streams::new(&spec, fds)?;
            (spec, streams)
        }
        other => {
            if let Some(Ok(base)) = early {
                base.end()?;
            }
            return other.map(drop);
        }
    };
    let (owner, base) = match early {
        Some(laid) => (owner, laid),
        None => SandboxBase::build(&base_spec, Some(&spec), None, owner),
    };
    let own_network = base_spec.own_network;
    // Nobody inside is told the policy.
    let egress = spec.egress.take();
    let booted = base.and_then(|base| boot(&spec, egress, base, streams));
    let report = match &booted {
        Ok(sandbox) => BootReport::Ready(sandbox.ready.clone()),
        Err(failure) => BootReport::Failed(failure.clone()),
    };
    let reported = packet::send(&owner, &report, &[]);
    match (booted, reported) {
        (Ok(sandbox), Ok(())) => sandbox.run_until_end(owner, &spec, own_network),
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

/// What a folder is that is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// A session's own, which says what else belongs to the session.
    Session,
    /// One that commands wrote: nothing in it is believed.
    Tree,
}

/// Removes a folder, whatever a sandbox left in it, if no warden is there to do so. Standard
/// input says which ids files in it may belong to, besides the caller's own; it may be empty.
///
/// # Errors
///
/// Fails if something in it can be neither removed nor made removable.
pub fn remove(path: &Path, what: Removed) -> io::Result<()> {
    let mut bytes = Vec::new();
    io::stdin().take(MAX_IDS).read_to_end(&mut bytes)?;
    let ids = match bytes.is_empty() {
        true => None,
        false => Some(bastide_proto::decode::<Ids>(&bytes).map_err(io::Error::other)?),
    };
    // Only maps that belong to nobody else are of use here.
    let ids = ids.filter(|ids| matches!(ids, Ids::Subordinate { .. }));
    let ids = ids
        .as_ref()
        .map(|ids| IdMap::claim(ids, Some(path), None))
        .transpose()
        .map_err(io::Error::other)?;
    match what {
        Removed::Session => folder::remove(path, ids.as_ref()),
        Removed::Tree => folder::remove_in_place(path, ids.as_ref()),
    }
}

/// What comes with a session.
struct Streams {
    /// Its owner's connection to the guest.
    first: UnixStream,
    /// The file whose lock says that somebody of the session lives.
    lock: OwnedFd,
    /// What its network needs, where that has a policy.
    egress: Option<EgressFds>,
}

impl Streams {
    fn new(spec: &BootSpec, fds: Vec<OwnedFd>) -> io::Result<Self> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or(io::ErrorKind::InvalidData);
        let (first, lock) = (next()?.into(), next()?);
        let egress = spec.egress.as_ref().map(|boot| EgressFds::new(boot, &mut fds)).transpose()?;
        Ok(Self { first, lock, egress })
    }
}

/// The socket to the owner, which comes as standard input.
fn take_owner() -> io::Result<UnixStream> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// From here on the standard streams are nobody's: init and all that follows inherit them.
fn close_standard_streams() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(rustix::stdio::dup2_stderr(&null)?)
}

/// A sandbox that is up.
struct Sandbox {
    /// What of the caller's folders is mounted on, until it ended.
    places: Cell<MountPointLocks>,
    base: SandboxBase,
    ready: SandboxReady,
    folder: Folder,
    control: ControlSocket,
    /// Held so that everybody can tell that somebody of this session lives.
    _lock: OwnedFd,
    cgroups: Cgroups,
    /// The network, where it has a policy, until it is watched over.
    egress: Option<Egress>,
}

impl Sandbox {
    /// Watches over the sandbox until it has ended, and sees to what is left of it.
    fn run_until_end(
        mut self,
        owner: UnixStream,
        spec: &BootSpec,
        own_network: bool,
    ) -> io::Result<()> {
        owner.set_nonblocking(true)?;
        let mut event_loop = EventLoop {
            init: Some(self.base.init_fd.try_clone()?),
            owner: Some(owner),
            ports: Ports::new(self.base.port_channel.try_clone()?, own_network),
            mounts: Mounts::new(self.base.keeper_spec(spec)),
            lease: Lease::new(true),
            egress: self.egress.take(),
            is_up: true,
            has_ended: false,
        };
        loop {
            match event_loop.run(&mut self.control)? {
                Event::SandboxEnded => {
                    self.record_end(how_it_ended(self.end()?));
                    event_loop.end_helpers();
                    // An owner that is still there may want to know; its folder stays as long.
                    if event_loop.owner.is_none() {
                        return Ok(());
                    }
                }
                Event::Expired(then) => {
                    // Where somebody is there to see to what is left of it, its files are theirs to remove.
                    let removes = then == ExpiryAction::Delete && event_loop.owner.is_none();
                    if removes {
                        // An end that is interrupted is finished by a sweep.
                        drop(self.folder.write_tombstone());
                        drop(self.folder.note_deletion());
                    }
                    self.end_if_alive(&mut event_loop)?;
                    if removes {
                        return self.remove();
                    }
                    self.record_end(ExitRecord::Expired);
                    event_loop.set_ended();
                    if event_loop.owner.is_none() {
                        return Ok(());
                    }
                }
                Event::Released => return Ok(()),
                Event::OwnerGone
                | Event::OwnerGaveUp
                | Event::OwnerSaysUp
                | Event::OwnerWantsNetwork(_) => {
                    self.end_if_alive(&mut event_loop)?;
                    if !spec.keep_folder {
                        return self.remove();
                    }
                    if event_loop.init.is_some() {
                        self.record_end(ExitRecord::Abandoned);
                    }
                    return Ok(());
                }
                Event::EndRequested { remove, caller } => {
                    self.end_if_alive(&mut event_loop)?;
                    if !remove && event_loop.init.is_some() {
                        self.record_end(ExitRecord::Stopped);
                    }
                    control::answer(&caller, &WardenResponse::Ended);
                    // The caller's socket closes when there is nothing more to wait for.
                    return if remove { self.remove() } else { Ok(()) };
                }
            }
        }
    }

    fn end_if_alive(&self, event_loop: &mut EventLoop) -> io::Result<()> {
        if event_loop.init.is_some() {
            self.end()?;
            // After the sandbox: what its processes had open is written as they end.
            event_loop.end_helpers();
        }
        Ok(())
    }

    /// Ends the sandbox, and with it the groups of its commands.
    fn end(&self) -> io::Result<WaitStatus> {
        let status = self.base.end()?;
        self.folder.reopen();
        // A group that stays is found by its name, and a mount point by its note.
        drop(self.cgroups.remove());
        drop(self.places.take());
        drop(mount_points::remove(&self.folder.held_path()));
        Ok(status)
    }

    /// Notes how the sandbox ended. A folder that cannot be written to, or is gone, has no reader
    /// either.
    fn record_end(&self, note: ExitRecord) {
        drop(self.folder.note_end(note));
    }

    fn remove(&self) -> io::Result<()> {
        rustix::process::chdir("/")?;
        self.folder.remove(Some(&self.base.ids))?;
        self.base.ids.forget();
        Ok(())
    }
}

fn how_it_ended(status: WaitStatus) -> ExitRecord {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(_), _) => ExitRecord::GuestEnded,
        (None, signal) => ExitRecord::Killed { signal: signal.unwrap_or(libc::SIGKILL) },
    }
}

/// Where the guest keeps what commands say.
pub(crate) fn logs_of(spec: &BootSpec) -> PathBuf {
    spec.session_dir.join("logs")
}

/// Builds the session's part of the sandbox; ends all of it if that fails.
fn boot(
    spec: &BootSpec,
    egress: Option<EgressBoot>,
    base: SandboxBase,
    mut streams: Streams,
) -> Result<Sandbox, BootFailure> {
    let mut cgroups = Cgroups::make(&spec.session_dir, &spec.limits);
    let network = Network::start(egress, streams.egress.take());
    match network.and_then(|network| boot_session(spec, &base, streams, network, &mut cgroups)) {
        Ok(BootedSession { ready, folder, control, lock, places, egress }) => Ok(Sandbox {
            egress,
            places: Cell::new(places),
            base,
            ready: SandboxReady { enforced: cgroups.enforced.clone().or(ready.enforced), ..ready },
            folder,
            control,
            _lock: lock,
            cgroups,
        }),
        Err(failure) => {
            // The failure is what the owner must hear.
            drop(base.end());
            drop(cgroups.remove());
            drop(mount_points::remove(&spec.session_dir));
            Err(failure)
        }
    }
}

/// What the warden of a sandbox that is up holds of the session.
struct BootedSession {
    ready: SandboxReady,
    folder: Folder,
    control: ControlSocket,
    lock: OwnedFd,
    places: MountPointLocks,
    egress: Option<Egress>,
}

/// The network of a session that has a policy: who serves it, and the end that goes into the sandbox.
#[derive(Default)]
struct Network {
    egress: Option<Egress>,
    far: Option<OwnedFd>,
}

impl Network {
    /// Starts the proxy, if there is a policy.
    fn start(boot: Option<EgressBoot>, fds: Option<EgressFds>) -> Result<Self, BootFailure> {
        let (Some(boot), Some(fds)) = (boot, fds) else { return Ok(Self::default()) };
        let (egress, far) = Egress::start(boot, fds)
            .step(|| "start the proxy of the network".to_owned())
            .map_err(StepError::of_session)?;
        Ok(Self { egress: Some(egress), far: Some(far) })
    }
}

/// Gives the session to the sandbox's first process, and sees it through its boot.
fn boot_session(
    spec: &BootSpec,
    base: &SandboxBase,
    streams: Streams,
    network: Network,
    cgroups: &mut Cgroups,
) -> Result<BootedSession, BootFailure> {
    let Network { mut egress, far } = network;
    let ids = &base.ids;
    let places =
        mount_points::make(&spec.session_dir, &spec.mount_points).map_err(StepError::of_session)?;
    for folder in &spec.own_folders {
        folder::make_around(&spec.session_dir, folder)
            .step(|| format!("make {}", folder.display()))
            .and_then(|()| ids.own_folder(folder))
            .map_err(StepError::of_session)?;
    }
    // Whoever looks for this session's warden finds it here.
    rustix::process::chdir(&spec.session_dir)
        .step(|| "enter the session's folder".to_owned())
        .map_err(StepError::of_session)?;
    let listen = || format!("listen in {}", spec.session_dir.display());
    let folder = Folder::open(&spec.session_dir).step(listen).map_err(StepError::of_session)?;
    let Streams { first, lock, .. } = streams;
    let session_fds = SessionFds {
        listener: folder.listen(GUEST_SOCKET).step(listen).map_err(StepError::of_session)?,
        first,
        lock: lock.try_clone().step(|| "hold the session's lock".to_owned())?,
        logs: ids.guest_folder(&logs_of(spec))?,
        oom_events: cgroups.oom_events.take(),
        egress: far,
        cgroup_procs: std::mem::take(&mut cgroups.cgroup_procs),
    };
    let Workspace { bind_override, device, limited_by } = Workspace::mount(spec, base)?;
    cgroups.enforced.disk = limited_by;
    let ready = base.boot_session(spec, &session_fds, &cgroups.enforced, bind_override)?;
    let ready = SandboxReady { image: device, ..ready };
    // The sandbox has it; a process there that ends is noticed.
    drop(session_fds);
    if let Some(egress) = &mut egress {
        egress.finish_start()?;
    }
    let control = folder
        .listen(CONTROL_SOCKET)
        .and_then(ControlSocket::new)
        .step(listen)
        .map_err(StepError::of_session)?;
    Ok(BootedSession { ready, folder, control, lock, places, egress })
}
