//! Wardens for a program that makes many sessions: forked, not executed.
//!
//! Starting a program costs more than all a warden does before its sandbox: a nursery has been started
//! once, and is copied.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::boot::{Born, Groundwork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open, setsid};

use super::pattern::Pattern;
use super::{close_standard_streams, serve, take_owner};
use crate::jail::prepare_filter;
use crate::packet;
use crate::sys::{Fork, close_inherited, exit_now, fork, hear_of_children, ignore_children};

/// The life of a nursery: it hears what most of its wardens will stand on, then forks one for each socket
/// to an owner that comes over its standard input, and answers with the new process. It ends when nobody can ask any more; its wardens do not.
///
/// # Errors
///
/// Fails if whoever started it cannot be talked to.
pub fn run() -> io::Result<()> {
    // Whatever the program's own parents forgot to close must not reach a sandbox.
    close_inherited()?;
    setsid()?;
    let asker = take_owner()?;
    close_standard_streams()?;
    // The kernel collects the dead for a parent that does not want to hear of them.
    ignore_children();
    let Some((ground, _)) = packet::receive::<Groundwork>(&asker)? else { return Ok(()) };
    // Before the pattern is made: what changes meanwhile is noticed.
    let mounts = File::open("/proc/self/mountinfo")?;
    let mut pattern = Pattern::make(&ground);
    // It keeps no folder of anybody's.
    rustix::process::chdir("/")?;
    // Every launcher needs it.
    prepare_filter();
    while let Some(((), sockets)) = packet::receive(&asker)? {
        let owner = <[OwnedFd; 1]>::try_from(sockets).map_err(|_| io::ErrorKind::InvalidData)?;
        if have_changed(&mounts)? {
            pattern = Pattern::make(&ground);
        }
        let warden = match fork()? {
            Fork::Child => {
                drop((asker, mounts));
                hear_of_children();
                let [owner] = owner;
                exit_now(i32::from(serve(owner.into(), pattern).is_err()))
            }
            Fork::Parent(warden) => warden,
        };
        let told =
            pidfd_open(warden, PidfdFlags::empty()).map_err(io::Error::from).and_then(|held| {
                let born = Born { pid: warden.as_raw_pid().unsigned_abs() };
                packet::send(&asker, &born, &[held.as_fd()])
            });
        if told.is_err() {
            // Whoever asked has another one made, or is gone.
            let _ = kill_process(warden, Signal::KILL);
            return told;
        }
    }
    Ok(())
}

/// Whether something was mounted or unmounted on the host since this was asked the last time.
fn have_changed(mounts: &File) -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(mounts, PollFlags::PRI)], Some(&at_once))? > 0)
}
