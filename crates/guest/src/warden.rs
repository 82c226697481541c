//! The warden: one small process on the host for each local session, the parent of its jail.
//!
//! It is started with its standard input as a socket to the process that makes the session, its owner;
//! or a nursery forks it, which that process started before.
//! It first hears what the sandbox stands on and lays that; the session may come much later.

pub mod container;
mod control;
mod engine;
mod folder;
mod foundation;
mod image;
mod keep;
mod limits;
mod mount_points;
pub mod nursery;
mod pattern;
mod ports;
mod pump;
mod tree;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bastide_proto::boot::{BootFailure, BootReport, BootSpec, Groundwork, Ids, Ready, Rung};
use bastide_proto::warden::{Answer, CONTROL_NAME, GUEST_NAME};
use rustix::process::{WaitStatus, setsid};

use crate::init::Handed;
use crate::jail::{IdMap, Step, StepError};
use crate::sys::close_inherited;
use crate::{packet, without};
use control::Control;
use folder::{EndNote, Folder};
use foundation::Foundation;
use image::Workspace;
use keep::{Event, Keeper};
use limits::Groups;
use pattern::Pattern;
use ports::Ports;

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

/// The life of a warden that has its owner, and nothing else open but a pattern.
fn serve(owner: UnixStream, pattern: Option<Pattern>) -> io::Result<()> {
    // Not the owner's terminal's business any more: an interrupt there is for the owner.
    setsid()?;
    owner.set_read_timeout(Some(BOOT))?;
    let Some((mut ground, _)) = packet::receive::<Groundwork>(&owner)? else { return Ok(()) };
    without::alter_ground(&mut ground);
    let pattern = pattern.filter(|pattern| pattern.is_of(&ground));
    let (owner, early) = match ground.rung {
        Rung::Namespaces => {
            let (owner, laid) = Foundation::lay(&ground, None, pattern, owner);
            (owner, Some(laid))
        }
        // What these stand on is the session's own.
        Rung::Landlock(_) | Rung::Unconfined => (owner, None),
    };
    // A session may be long in coming. None will without its owner, whose end of the socket closes.
    owner.set_read_timeout(None)?;
    let (spec, streams) = match packet::receive::<BootSpec>(&owner) {
        Ok(Some((mut spec, fds))) => {
            without::alter_session(&ground, &mut spec);
            (spec, Streams::new(fds)?)
        }
        other => {
            if let Some(Ok(foundation)) = early {
                foundation.end()?;
            }
            return other.map(drop);
        }
    };
    let (owner, foundation) = match early {
        Some(laid) => (owner, laid),
        None => Foundation::lay(&ground, Some(&spec), None, owner),
    };
    let own_network = ground.own_network;
    let booted = foundation.and_then(|foundation| boot(&spec, foundation, streams));
    let report = match &booted {
        Ok(sandbox) => BootReport::Ready(sandbox.ready.clone()),
        Err(failure) => BootReport::Failed(failure.clone()),
    };
    let told = packet::send(&owner, &report, &[]);
    match (booted, told) {
        (Ok(sandbox), Ok(())) => sandbox.keep(owner, &spec, own_network),
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
    let mut said = Vec::new();
    io::stdin().take(MAX_IDS).read_to_end(&mut said)?;
    let ids = match said.is_empty() {
        true => None,
        false => Some(bastide_proto::decode::<Ids>(&said).map_err(io::Error::other)?),
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
        Removed::Tree => folder::remove_only(path, ids.as_ref()),
    }
}

/// What comes with a session.
struct Streams {
    /// Its owner's connection to the guest.
    first: UnixStream,
    /// The file whose lock says that somebody of the session lives.
    lock: OwnedFd,
}

impl Streams {
    fn new(fds: Vec<OwnedFd>) -> io::Result<Self> {
        let fds = <[OwnedFd; 2]>::try_from(fds).map_err(|_| io::ErrorKind::InvalidData)?;
        let [first, lock] = fds;
        Ok(Self { first: first.into(), lock })
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
    foundation: Foundation,
    ready: Ready,
    folder: Folder,
    control: Control,
    /// Held so that everybody can tell that somebody of this session lives.
    _lock: OwnedFd,
    groups: Groups,
}

impl Sandbox {
    /// Watches over the sandbox until it has ended, and sees to what is left of it.
    fn keep(mut self, owner: UnixStream, spec: &BootSpec, own_network: bool) -> io::Result<()> {
        owner.set_nonblocking(true)?;
        let mut keeper = Keeper {
            init: Some(self.foundation.init_fd.try_clone()?),
            owner: Some(owner),
            ports: Ports::new(self.foundation.porter.try_clone()?, own_network),
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
                    if !spec.keep_folder {
                        return self.remove();
                    }
                    if keeper.init.is_some() {
                        self.note(EndNote::Abandoned);
                    }
                    return Ok(());
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

    /// Ends the sandbox, and with it the groups of its commands.
    fn end(&self) -> io::Result<WaitStatus> {
        let status = self.foundation.end()?;
        // A group that stays is found by its name, and a mount point by its note.
        drop(self.groups.remove());
        drop(mount_points::remove(&self.folder.held_path()));
        Ok(status)
    }

    /// Notes how the sandbox ended. A folder that cannot be written to, or is gone, has no reader
    /// either.
    fn note(&self, note: EndNote) {
        drop(self.folder.note_end(note));
    }

    fn remove(&self) -> io::Result<()> {
        rustix::process::chdir("/")?;
        self.folder.remove(Some(&self.foundation.ids))?;
        self.foundation.ids.forget();
        Ok(())
    }
}

fn how_it_ended(status: WaitStatus) -> EndNote {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(_), _) => EndNote::GuestEnded,
        (None, signal) => EndNote::Killed { signal: signal.unwrap_or(libc::SIGKILL) },
    }
}

/// Where the guest keeps what commands say.
pub(crate) fn logs_of(spec: &BootSpec) -> PathBuf {
    spec.session_dir.join("logs")
}

/// Builds the session's part of the sandbox; ends all of it if that fails.
fn boot(spec: &BootSpec, foundation: Foundation, streams: Streams) -> Result<Sandbox, BootFailure> {
    let mut groups = Groups::make(&spec.session_dir, &spec.limits);
    match stand(spec, &foundation, streams, &mut groups) {
        Ok(Standing { ready, folder, control, lock }) => Ok(Sandbox {
            foundation,
            ready: Ready { enforced: groups.enforced.clone().or(ready.enforced), ..ready },
            folder,
            control,
            _lock: lock,
            groups,
        }),
        Err(failure) => {
            // The failure is what the owner must hear.
            drop(foundation.end());
            drop(groups.remove());
            drop(mount_points::remove(&spec.session_dir));
            Err(failure)
        }
    }
}

/// What the warden of a sandbox that is up holds of the session.
struct Standing {
    ready: Ready,
    folder: Folder,
    control: Control,
    lock: OwnedFd,
}

/// Gives the session to the sandbox's first process, and sees it through its boot.
fn stand(
    spec: &BootSpec,
    foundation: &Foundation,
    streams: Streams,
    groups: &mut Groups,
) -> Result<Standing, BootFailure> {
    let ids = &foundation.ids;
    mount_points::make(&spec.session_dir, &spec.mount_points).map_err(StepError::of_session)?;
    for folder in &spec.own_folders {
        folder::make_around(&spec.session_dir, folder)
            .step(|| format!("make {}", folder.display()))
            .and_then(|()| ids.own_folder(folder))
            .map_err(StepError::of_session)?;
    }
    // Whoever looks for this session's warden finds it here.
    rustix::process::chdir(&spec.session_dir).step(|| "enter the session's folder".to_owned())?;
    let listen = || format!("listen in {}", spec.session_dir.display());
    let folder = Folder::open(&spec.session_dir).step(listen)?;
    let Streams { first, lock } = streams;
    let handed = Handed {
        listener: folder.listen(GUEST_NAME).step(listen)?,
        first,
        lock: lock.try_clone().step(|| "hold the session's lock".to_owned())?,
        logs: ids.guest_folder(&logs_of(spec))?,
        kills: groups.kills.take(),
        doors: std::mem::take(&mut groups.doors),
    };
    let Workspace { instead, device, limited_by } = Workspace::mount(spec, foundation)?;
    groups.enforced.disk = limited_by;
    let ready = foundation.carry(spec, &handed, &groups.enforced, instead)?;
    let ready = Ready { image: device, ..ready };
    let control = folder.listen(CONTROL_NAME).and_then(Control::new).step(listen)?;
    Ok(Standing { ready, folder, control, lock })
}
