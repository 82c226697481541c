//! A warden as the process that started it knows it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::Stdio;
use std::time::Duration;

use bastide::host::process_identity::{ended, kill};
use bastide_guest_bin::GuestBinary;
use tokio::process::{Child, Command};

/// A warden, whoever its parent is.
#[derive(Debug)]
pub(crate) enum Warden {
    /// This process's child.
    Own(Child),
    /// A zygote's, which collects it.
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
    pub(crate) fn reap_in_background(self) {
        if let Self::Own(mut child) = self {
            tokio::spawn(async move { child.wait().await });
        }
    }
}

/// The last word says whose it is to whoever looks for orphans: what it forks cannot be looked at otherwise.
pub(crate) fn command(guest: &GuestBinary, stdin: StdStream, words: &[&str]) -> Command {
    let mut command = Command::new(guest.checked_path());
    command.arg0("bastide-warden").arg("warden").args(words).env_clear();
    command.args(guest.path().parent());
    command.stdin(Stdio::from(OwnedFd::from(stdin))).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
