//! The process that wardens are forked from, in a program that makes many sessions.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use bastide::warden_client;
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{BaseSpec, ForkedWarden};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use rustix::process::{Gid, Uid};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::descriptors;
use crate::warden::{Warden, command};

/// How long a zygote may take for one warden.
const FORK_DEADLINE: Duration = Duration::from_secs(2);

/// The longest answer of a zygote.
const MAX_ANSWER: usize = 64;

/// A process that is a copy away from a warden. It ends when this is dropped; its wardens do not.
///
/// The way to it is gone while somebody uses it, and for good if that was given up half-way: nobody
/// shall take another's answer for its own.
#[derive(Debug)]
pub(crate) struct Zygote {
    stream: Mutex<Option<UnixStream>>,
    base_spec: BaseSpec,
    caller: Credentials,
}

/// Who this process is to files. A program may become somebody else, and its zygote does not.
#[derive(Debug, PartialEq, Eq)]
struct Credentials {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Credentials {
    fn now() -> io::Result<Self> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Ok(Self { uid, gid, groups: rustix::process::getgroups()? })
    }
}

impl Zygote {
    /// Starts one for wardens with this base, for the most part.
    pub(crate) async fn start(guest: &GuestBinary, base_spec: &BaseSpec) -> io::Result<Self> {
        let (near, far) = StdStream::pair()?;
        let mut near = warden_client::to_tokio(near)?;
        Warden::Own(command(guest, far, &["zygote"]).spawn()?).reap_in_background();
        warden_client::send(&mut near, base_spec).await?;
        let (stream, base_spec) = (Mutex::new(Some(near)), base_spec.clone());
        Ok(Self { stream, base_spec, caller: Credentials::now()? })
    }

    /// Whether it serves for wardens with this base.
    pub(crate) fn is_for(&self, base_spec: &BaseSpec) -> bool {
        // Whoever holds it now has it for a moment.
        let has_ended = self.stream.try_lock().is_ok_and(|stream| stream.is_none());
        self.base_spec == *base_spec && !has_ended && self.has_callers_credentials()
    }

    /// Whether its wardens may what this process may.
    pub(crate) fn has_callers_credentials(&self) -> bool {
        Credentials::now().is_ok_and(|now| now == self.caller)
    }

    /// Has a warden forked, and says where it hears its orders. One that comes too late finds nobody
    /// there, and ends.
    pub(crate) async fn fork(&self) -> io::Result<(Warden, StdStream)> {
        let (control, far_control) = StdStream::pair()?;
        let mut held = self.stream.lock().await;
        let mut stream = held.take().ok_or(io::ErrorKind::NotConnected)?;
        let forked = tokio::time::timeout(FORK_DEADLINE, ask(&mut stream, &far_control)).await??;
        *held = Some(stream);
        Ok((forked, control))
    }
}

async fn ask(stream: &mut UnixStream, far_control: &StdStream) -> io::Result<Warden> {
    let question = bastide_proto::encode_prefixed(&()).map_err(io::Error::other)?;
    stream.writable().await?;
    stream.try_io(Interest::WRITABLE, || {
        // Only one question is on its way at a time, so there is room for it.
        descriptors::send(stream.as_fd(), &question, &[far_control.as_fd()])
    })?;
    let mut prefix = [0; LENGTH_BYTES];
    let held = stream
        .async_io(Interest::READABLE, || descriptors::receive(stream.as_fd(), &mut prefix))
        .await?;
    let length = prefixed_length(prefix, MAX_ANSWER).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let ForkedWarden { pid } = bastide_proto::decode(&body).map_err(io::Error::other)?;
    Ok(Warden::Forked { pid, held })
}
