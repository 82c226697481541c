//! Wardens for a program that makes many sessions: forked, not executed.
//!
//! Starting a program costs more than all a warden does before its sandbox: a zygote has been started
//! once, and is copied.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::boot::{BaseSpec, ForkedWarden};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open, setsid};

use super::root_template::RootTemplate;
use super::{close_standard_streams, serve, take_owner};
use crate::jail::prepare_filter;
use crate::packet;
use crate::sys::{Fork, close_inherited, default_sigchld, exit_now, fork, ignore_sigchld};

/// The life of a zygote: it is told the base of most of its wardens, then forks one for each socket
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
    // With SIGCHLD ignored the kernel reaps the children itself.
    ignore_sigchld();
    let Some((base_spec, _)) = packet::receive::<BaseSpec>(&asker)? else { return Ok(()) };
    // Before the template is made: what changes meanwhile is noticed.
    let mounts = File::open("/proc/self/mountinfo")?;
    let mut template = RootTemplate::make(&base_spec);
    // It keeps no folder of anybody's.
    rustix::process::chdir("/")?;
    // Every launcher needs it.
    prepare_filter();
    while let Some(((), sockets)) = packet::receive(&asker)? {
        let owner = <[OwnedFd; 1]>::try_from(sockets).map_err(|_| io::ErrorKind::InvalidData)?;
        if have_changed(&mounts)? {
            template = RootTemplate::make(&base_spec);
        }
        let warden = match fork()? {
            Fork::Child => {
                drop((asker, mounts));
                default_sigchld();
                let [owner] = owner;
                exit_now(i32::from(serve(owner.into(), template).is_err()))
            }
            Fork::Parent(warden) => warden,
        };
        let reported =
            pidfd_open(warden, PidfdFlags::empty()).map_err(io::Error::from).and_then(|held| {
                let forked = ForkedWarden { pid: warden.as_raw_pid().unsigned_abs() };
                packet::send(&asker, &forked, &[held.as_fd()])
            });
        if reported.is_err() {
            // Whoever asked has another one made, or is gone.
            let _ = kill_process(warden, Signal::KILL);
            return reported;
        }
    }
    Ok(())
}

/// Whether something was mounted or unmounted on the host since this was asked the last time.
fn have_changed(mounts: &File) -> io::Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(mounts, PollFlags::PRI)], Some(&at_once))? > 0)
}
