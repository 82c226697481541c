//! The warden: one small process on the host for each local session, the parent of its jail.
//!
//! It is started with its standard input as a socket to the process that makes the session (its
//! owner) and its standard output as that owner's first connection to the guest.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use bastide_proto::boot::{BootFailure, BootReport, BootSpec};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, setsid, waitpid,
};

use crate::init::{self, Inheritance};
use crate::jail::{IdMap, Step, StepError, clone_binds};
use crate::packet;
use crate::sys::{Fork, close_inherited, fork_into};

/// The longest boot specification.
const MAX_SPEC: usize = 1 << 20;

/// The socket later hosts connect to, in the session's folder.
pub const SOCKET_NAME: &str = "guest.sock";

/// The life of a warden.
///
/// # Errors
///
/// Fails only if the owner cannot be talked to; what goes wrong with the sandbox is told to the
/// owner.
pub fn run() -> io::Result<()> {
    // Whatever the owner's own parents forgot to close must not reach a sandbox.
    close_inherited()?;
    // Not the owner's terminal's business any more: an interrupt there is for the owner.
    setsid()?;
    let mut owner = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let spec: BootSpec = read_message(&mut owner)?;
    match boot(&spec) {
        Ok(sandbox) => {
            write_message(&mut owner, &BootReport::Ready(sandbox.ready.clone()))?;
            // The owner's end closing is how it says goodbye, so its socket is held until all is done.
            let ended = sandbox.keep(spec.tied_to_owner.then_some(&owner));
            let removed = if spec.tied_to_owner { remove(&spec) } else { Ok(()) };
            ended.and(removed)
        }
        Err(failure) => {
            // What is left of a boot that failed is the owner's to remove: it made the folder.
            write_message(&mut owner, &BootReport::Failed(failure))
        }
    }
}

/// Removes the session's folder. Nothing runs inside any more, and links in it are not followed.
fn remove(spec: &BootSpec) -> io::Result<()> {
    rustix::process::chdir("/")?;
    fs::remove_dir_all(&spec.session_dir)
}

/// A sandbox that is up.
struct Sandbox {
    init: Pid,
    ready: bastide_proto::boot::Ready,
    /// Held so that no other session gets the same ids while this one can leave files behind.
    _ids: IdMap,
    /// Held because the guest ends when it closes.
    _to_init: OwnedFd,
}

impl Sandbox {
    /// Waits until the sandbox ends, or ends it when its owner is gone.
    fn keep(self, owner: Option<&UnixStream>) -> io::Result<()> {
        let init = pidfd_open(self.init, PidfdFlags::empty())?;
        let mut waiting = vec![PollFd::new(&init, PollFlags::IN)];
        if let Some(owner) = owner {
            // The owner sends nothing; only its end can be noticed here.
            waiting.push(PollFd::new(owner, PollFlags::IN | PollFlags::RDHUP));
        }
        loop {
            match poll(&mut waiting, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        end(self.init, &init)
    }
}

/// Ends a sandbox: with its first process the kernel ends all of them.
fn end(pid: Pid, init: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(init, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(errno.into()),
    }
    waitpid(Some(pid), WaitOptions::empty())?;
    Ok(())
}

fn boot(spec: &BootSpec) -> Result<Sandbox, BootFailure> {
    let ids = IdMap::claim(&spec.ids)?;
    let listener = listen(spec)?;
    let logs = ids.open_folder(&spec.session_dir.join("logs"))?;
    let first = io::stdout().as_fd().try_clone_to_owned().map(UnixStream::from);
    let first = first.step(|| "take the first connection".to_owned())?;
    // From here on the standard streams are nobody's: init and all that follows inherit them.
    let null = File::options().read(true).write(true).open("/dev/null");
    null.and_then(|null| {
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(rustix::stdio::dup2_stderr(&null)?)
    })
    .step(|| "let go of the standard streams".to_owned())?;
    // Init finds the folder for the new root as its current one: it may not look up the path.
    rustix::process::chdir(&spec.root_dir).step(|| "enter the session's folder".to_owned())?;

    let (to_init, to_warden) = UnixStream::pair().step(|| "make a pair of sockets".to_owned())?;
    let init = match fork_into(namespaces(spec)) {
        Ok(Fork::Child) => {
            drop(to_init);
            init::run(Inheritance {
                spec,
                ids: &ids,
                warden: to_warden.into(),
                listener,
                first: Some(first),
                logs,
            })
        }
        Ok(Fork::Parent(init)) => init,
        Err(error) => return Err(no_namespaces(&error)),
    };
    drop((to_warden, listener, first, logs));
    let to_init = OwnedFd::from(to_init);
    let ready = prepare(spec, &ids, init, &to_init).inspect_err(|_| {
        if let Ok(init_fd) = pidfd_open(init, PidfdFlags::empty()) {
            drop(end(init, &init_fd));
        }
    })?;
    Ok(Sandbox { init, ready, _ids: ids, _to_init: to_init })
}

/// Does from outside what init cannot do from inside, and waits for init's report.
fn prepare(
    spec: &BootSpec,
    ids: &IdMap,
    init: Pid,
    to_init: &OwnedFd,
) -> Result<bastide_proto::boot::Ready, BootFailure> {
    ids.write(init)?;
    let binds = match ids {
        IdMap::Range { .. } => {
            let path = format!("/proc/{}/ns/user", init.as_raw_nonzero());
            let namespace = File::open(path).step(|| "open the user namespace".to_owned())?;
            clone_binds(&spec.steps, Some(namespace.as_fd()))?
        }
        IdMap::Own { .. } => Vec::new(),
    };
    let talk = || "talk to the sandbox's first process".to_owned();
    for some in binds.chunks(packet::MAX_FDS) {
        let fds: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        packet::send(to_init, &(), &fds).step(talk)?;
    }
    packet::send(to_init, &(), &[]).step(talk)?;
    match packet::receive(to_init).step(talk)? {
        Some((BootReport::Ready(ready), _)) => {
            let init_pid = init.as_raw_pid().unsigned_abs();
            Ok(bastide_proto::boot::Ready { init_pid, ..ready })
        }
        Some((BootReport::Failed(failure), _)) => Err(failure),
        None => Err(StepError::from_errno("start inside the sandbox", libc::ECHILD).into()),
    }
}

fn namespaces(spec: &BootSpec) -> libc::c_int {
    let always = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    if spec.own_network { always | libc::CLONE_NEWNET } else { always }
}

fn no_namespaces(error: &io::Error) -> BootFailure {
    BootFailure {
        step: "make the sandbox's namespaces".to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        no_user_namespaces: true,
    }
}

/// Makes the socket later hosts connect to. It is bound through a held folder, because the name of
/// a socket may have 107 bytes at most and a folder's path may be longer.
fn listen(spec: &BootSpec) -> Result<UnixListener, StepError> {
    let step = || format!("listen in {}", spec.session_dir.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(&spec.session_dir, flags, Mode::empty()).step(step)?;
    let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", raw(&folder));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).step(step),
        _ => {}
    }
    UnixListener::bind(path).step(step)
}

fn raw(fd: &OwnedFd) -> i32 {
    use std::os::fd::AsRawFd;
    fd.as_raw_fd()
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
