//! The first process inside a sandbox: builds the jail, starts guest and launcher, and from then on
//! only collects the dead. It has one thread for all its life, so it may fork.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use bastide_proto::boot::{BootFailure, BootReport, BootSpec, Ready};
use rustix::process::{Pid, WaitOptions, setsid, wait};

use crate::jail::{IdMap, Step, StepError, enter_new_root, reduce_guest};
use crate::launcher::LauncherReport;
use crate::server::{self, Endpoints};
use crate::sys::{Fork, block_signals, exit_now, fork, raise_loopback};
use crate::{launcher, packet};

/// Everything init is given by the warden that forked it.
#[derive(Debug)]
pub(crate) struct Inheritance<'a> {
    /// What to build.
    pub(crate) spec: &'a BootSpec,
    /// Who is who inside.
    pub(crate) ids: &'a IdMap,
    /// The socket to the warden.
    pub(crate) warden: OwnedFd,
    /// Where later hosts connect.
    pub(crate) listener: UnixListener,
    /// The connection of the host that made the session.
    pub(crate) first: Option<UnixStream>,
}

/// The life of init.
pub(crate) fn run(inheritance: Inheritance<'_>) -> ! {
    block_signals();
    let warden = inheritance.warden.as_fd().try_clone_to_owned();
    let (report, guest) = match start(inheritance) {
        Ok((ready, guest)) => (BootReport::Ready(ready), Some(guest)),
        Err(failure) => (BootReport::Failed(failure), None),
    };
    let told = warden.and_then(|warden| packet::send(&warden, &report, &[]));
    let Some(guest) = guest.filter(|_| told.is_ok()) else { exit_now(1) };
    // When the first process ends, the kernel ends every other one inside: nothing outlives the
    // guest.
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if pid == guest => exit_now(0),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => exit_now(1),
        }
    }
}

fn start(inheritance: Inheritance<'_>) -> Result<(Ready, Pid), BootFailure> {
    let Inheritance { spec, ids, warden, listener, first } = inheritance;
    build_jail(spec, ids, &warden)?;
    let pair = || UnixStream::pair().step(|| "make a pair of sockets".to_owned());
    let (guest_end, launcher_end) = pair()?;
    let (report, launcher_report) = pair()?;
    let guest = match fork().step(|| "fork the guest".to_owned())? {
        Fork::Child => {
            drop((launcher_end, report, launcher_report));
            let warden = UnixStream::from(warden);
            be_guest(spec, Endpoints { listener, first, launcher: guest_end, warden })
        }
        Fork::Parent(guest) => guest,
    };
    drop((guest_end, listener, first));
    match fork().step(|| "fork the launcher".to_owned())? {
        Fork::Child => {
            drop((report, warden));
            launcher::run(spec, guest, &launcher_end.into(), launcher_report.into())
        }
        Fork::Parent(_) => drop((launcher_end, launcher_report)),
    }
    let walls: LauncherReport = receive(&report.into(), "put the walls around commands")?;
    Ok((Ready { init_pid: 0, landlock_abi: walls?.landlock_abi }, guest))
}

fn build_jail(spec: &BootSpec, ids: &IdMap, warden: &OwnedFd) -> Result<(), BootFailure> {
    let binds = receive_binds(warden)?;
    ids.become_inside()?;
    let copied_outside = matches!(ids, IdMap::Range { .. });
    enter_new_root(&spec.steps, copied_outside.then_some(binds))?;
    rustix::system::sethostname(spec.hostname.as_bytes())
        .step(|| "set the host name".to_owned())?;
    if spec.own_network {
        use rustix::net::{AddressFamily, SocketType, socket};
        socket(AddressFamily::INET, SocketType::DGRAM, None)
            .map_err(std::io::Error::from)
            .and_then(raise_loopback)
            .step(|| "bring loopback up".to_owned())?;
    }
    Ok(())
}

/// The warden's word that the maps are written, with the mounts it copied. The last packet has none.
fn receive_binds(warden: &OwnedFd) -> Result<Vec<OwnedFd>, StepError> {
    let mut binds = Vec::new();
    loop {
        let received = packet::receive::<()>(warden).step(|| "hear from the warden".to_owned())?;
        match received {
            Some(((), fds)) if fds.is_empty() => return Ok(binds),
            Some(((), fds)) => binds.extend(fds),
            // The warden failed at its part and has said so itself.
            None => exit_now(1),
        }
    }
}

fn receive<T: serde::de::DeserializeOwned>(from: &OwnedFd, step: &str) -> Result<T, StepError> {
    match packet::receive(from) {
        Ok(Some((message, _))) => Ok(message),
        Ok(None) => Err(rustix::io::Errno::CHILD).step(|| step.to_owned()),
        Err(error) => Err(error).step(|| step.to_owned()),
    }
}

fn be_guest(spec: &BootSpec, endpoints: Endpoints) -> ! {
    // A group of its own, so that no signal to somebody's group reaches it.
    let alone = setsid().step(|| "start a session of processes".to_owned());
    let served = alone
        .and_then(|_| reduce_guest(&spec.ids))
        .map_err(std::io::Error::other)
        .and_then(|()| server::run(spec, endpoints));
    exit_now(i32::from(served.is_err()))
}
