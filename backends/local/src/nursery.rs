//! The process that wardens are forked from, in a program that makes many sessions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;

use bastide::host::process::{ended, kill};
use bastide::host::words;
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{Born, Groundwork};
use rustix::process::{Gid, Uid};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use crate::descriptors;

/// How long a nursery may take for one warden.
const BIRTH: Duration = Duration::from_secs(2);

/// The longest answer of a nursery.
const MAX_ANSWER: usize = 64;

/// A warden, whoever its parent is.
#[derive(Debug)]
pub(crate) enum Warden {
    /// This process's child.
    Own(Child),
    /// A nursery's, which collects it.
    Forked { pid: u32, held: OwnedFd },
}

impl Warden {
    /// Starts one, and says where it hears its orders.
    pub(crate) fn start(guest: &GuestBinary) -> io::Result<(Self, StdStream)> {
        let (control, far_control) = StdStream::pair()?;
        Ok((Self::Own(command(guest, far_control, &[]).spawn()?), control))
    }

    /// Its process; `None` if it has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Own(child) => child.id(),
            Self::Forked { pid, .. } => Some(*pid),
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Own(child) => child.start_kill(),
            Self::Forked { held, .. } => kill(held),
        }
    }

    /// Waits until it has ended, and collects it.
    pub(crate) async fn ended(self, most: Duration) -> io::Result<()> {
        match self {
            Self::Own(mut child) => {
                tokio::time::timeout(most, child.wait()).await??;
                Ok(())
            }
            Self::Forked { held, .. } => ended(held, most).await,
        }
    }

    /// Has it collected whenever it ends. It may outlive this process.
    pub(crate) fn let_live(self) {
        if let Self::Own(mut child) = self {
            tokio::spawn(async move { child.wait().await });
        }
    }
}

/// A process that is a copy away from a warden. It ends when this is dropped; its wardens do not.
///
/// The way to it is gone while somebody uses it, and for good if that was given up half-way: nobody
/// shall take another's answer for its own.
#[derive(Debug)]
pub(crate) struct Nursery {
    stream: Mutex<Option<UnixStream>>,
    ground: Groundwork,
    caller: Caller,
}

/// Who this process is to files. A program may become somebody else, and its nursery does not.
#[derive(Debug, PartialEq, Eq)]
struct Caller {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Caller {
    fn now() -> io::Result<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(Self { uid, gid, groups: rustix::process::getgroups()? })
    }
}

impl Nursery {
    /// Starts one for wardens that stand on this, for the most part.
    pub(crate) async fn start(guest: &GuestBinary, ground: &Groundwork) -> io::Result<Self> {
        let (near, far) = StdStream::pair()?;
        let mut near = words::to_tokio(near)?;
        Warden::Own(command(guest, far, &["nursery"]).spawn()?).let_live();
        words::send(&mut near, ground).await?;
        let (stream, ground) = (Mutex::new(Some(near)), ground.clone());
        Ok(Self { stream, ground, caller: Caller::now()? })
    }

    /// Whether it serves for wardens that stand on this.
    pub(crate) fn is_for(&self, ground: &Groundwork) -> bool {
        // Whoever holds it now has it for a moment.
        let has_ended = self.stream.try_lock().is_ok_and(|stream| stream.is_none());
        self.ground == *ground && !has_ended && self.is_callers()
    }

    /// Whether its wardens may what this process may.
    pub(crate) fn is_callers(&self) -> bool {
        Caller::now().is_ok_and(|now| now == self.caller)
    }

    /// Has a warden forked, and says where it hears its orders. One that comes too late finds nobody
    /// there, and ends.
    pub(crate) async fn fork(&self) -> io::Result<(Warden, StdStream)> {
        let (control, far_control) = StdStream::pair()?;
        let mut held = self.stream.lock().await;
        let mut stream = held.take().ok_or(io::ErrorKind::NotConnected)?;
        let born = tokio::time::timeout(BIRTH, ask(&mut stream, &far_control)).await??;
        *held = Some(stream);
        Ok((born, control))
    }
}

async fn ask(stream: &mut UnixStream, far_control: &StdStream) -> io::Result<Warden> {
    let question = bastide_proto::encode(&()).map_err(io::Error::other)?;
    let length = u32::try_from(question.len()).map_err(io::Error::other)?;
    let question = [&length.to_le_bytes()[..], &question].concat();
    stream.writable().await?;
    stream.try_io(Interest::WRITABLE, || {
        // Only one question is on its way at a time, so there is room for it.
        descriptors::send(stream.as_fd(), &question, &[far_control.as_fd()])
    })?;
    let mut header = [0; 4];
    let held = stream
        .async_io(Interest::READABLE, || descriptors::receive(stream.as_fd(), &mut header))
        .await?;
    let length = usize::try_from(u32::from_le_bytes(header)).map_err(io::Error::other)?;
    if length > MAX_ANSWER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let Born { pid } = bastide_proto::decode(&body).map_err(io::Error::other)?;
    Ok(Warden::Forked { pid, held })
}

/// The last word says whose it is to whoever looks for strays: what it forks cannot be looked at otherwise.
fn command(guest: &GuestBinary, stdin: StdStream, words: &[&str]) -> Command {
    let mut command = Command::new(guest.checked_path());
    command.arg0("bastide-warden").arg("warden").args(words).env_clear();
    command.args(guest.path().parent());
    command.stdin(Stdio::from(OwnedFd::from(stdin))).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
