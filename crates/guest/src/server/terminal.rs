//! Terminals for commands.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use bastide_proto::{TerminalSize, TerminalState};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, major, minor};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

/// The device number of the far ends of terminals.
const FAR_ENDS: u32 = 136;

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
        let far = match ioctl_tiocgptpeer(&near, flags) {
            Err(Errno::NOTTY | Errno::INVAL) => open_by_name(&near)?,
            far => far?,
        };
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

    /// Whether the command that was started on the terminal is in its foreground, and whether what is typed is shown.
    pub(crate) fn state(&self, command: Pid) -> io::Result<TerminalState> {
        let modes = tcgetattr(&self.0)?.local_modes;
        // Whoever edits lines itself reads keys, not lines, and shows what it wants to.
        let is_hidden = modes.contains(LocalModes::ICANON) && !modes.contains(LocalModes::ECHO);
        let is_own = match tcgetpgrp(&self.0) {
            Ok(group) => group == command,
            // It has not taken the terminal yet, or has ended.
            Err(Errno::OPNOTSUPP | Errno::NOTTY) => false,
            Err(errno) => return Err(errno.into()),
        };
        Ok(TerminalState { is_own, is_hidden })
    }

    /// Another handle to the near end.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

/// Opens the far end by its name, where the kernel gives it in no other way. What is found there must be
/// that very terminal.
fn open_by_name(near: &OwnedFd) -> io::Result<OwnedFd> {
    let name = ptsname(near, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let far = rustix::fs::open(&name, flags, Mode::empty())?;
    let found = fstat(&far)?;
    let number = name.to_str().ok().and_then(|name| name.rsplit('/').next()?.parse().ok());
    let is_it = FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice
        && major(found.st_rdev) == FAR_ENDS
        && number == Some(minor(found.st_rdev));
    if is_it { Ok(far) } else { Err(io::ErrorKind::InvalidData.into()) }
}
