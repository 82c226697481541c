//! Terminals for commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::TerminalSize;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The near end of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    /// Makes a terminal; the far end is for the command.
    pub(crate) fn open(size: TerminalSize) -> io::Result<(Self, OwnedFd)> {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&near)?;
        // Asked of the near end itself: no name is looked up that a command could have changed.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let far = ioctl_tiocgptpeer(&near, flags)?;
        fcntl_setfl(&near, fcntl_getfl(&near)? | OFlags::NONBLOCK)?;
        let terminal = Self(near);
        terminal.resize(size)?;
        Ok((terminal, far))
    }

    /// Gives the terminal another size; whoever runs on it is told by the kernel.
    pub(crate) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }

    /// Another handle to the near end.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}
