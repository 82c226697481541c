//! The streams of a command: pipes, or a terminal.

use std::io;
use std::os::fd::OwnedFd;

use bastide_proto::frame::Tag;
use bastide_proto::{Stdin, TerminalSize};
use rustix::fs::{FileType, Gid, Uid, fchown, fstat};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

use super::super::credentials::with_everything;
use super::super::pipes::Pipes;
use super::super::terminal::Terminal;
use crate::accounts::Identity;

/// The near ends of a command's streams.
pub(super) struct Streams {
    pub(super) input: Option<pipe::Sender>,
    pub(super) outputs: Vec<(Tag, pipe::Receiver)>,
    pub(super) terminal: Option<Terminal>,
}

/// Pipes for a command, and their far ends.
pub(super) fn pipe_streams(pipes: &Pipes, stdin: Stdin) -> io::Result<(Streams, [OwnedFd; 3])> {
    let (far_in, near_in) = match stdin {
        Stdin::Null => (pipes.empty_input()?, None),
        Stdin::Stream => {
            let (far, near) = pipe_with(PipeFlags::CLOEXEC)?;
            (far, Some(near))
        }
    };
    let (near_out, far_out) = pipes.output()?;
    let (near_err, far_err) = pipes.output()?;
    let streams = Streams {
        input: near_in.map(pipe::Sender::from_owned_fd).transpose()?,
        outputs: vec![(Tag::Stdout, near_out), (Tag::Stderr, near_err)],
        terminal: None,
    };
    Ok((streams, [far_in, far_out, far_err]))
}

/// A terminal for a command, and its far ends.
pub(super) fn terminal_streams(size: TerminalSize) -> io::Result<(Streams, [OwnedFd; 3])> {
    let (terminal, far) = Terminal::open(size)?;
    let streams = Streams {
        input: Some(pipe::Sender::from_owned_fd_unchecked(terminal.handle()?)?),
        outputs: vec![(Tag::Stdout, pipe::Receiver::from_owned_fd_unchecked(terminal.handle()?)?)],
        terminal: Some(terminal),
    };
    let (far_out, far_err) = (far.try_clone()?, far.try_clone()?);
    Ok((streams, [far, far_out, far_err]))
}

/// Makes the far ends of pipes and terminals the user's own: commands open them again by their names.
pub(super) fn give(far: &[OwnedFd; 3], who: &Identity) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(who.uid), Gid::from_raw(who.gid));
    for end in far {
        let is_pipe = FileType::from_raw_mode(fstat(end)?.st_mode) == FileType::Fifo;
        if is_pipe || rustix::termios::isatty(end) {
            match with_everything(|| Ok(fchown(end, Some(uid), Some(gid))?)) {
                // Behind a kernel that gives pipes to nobody they work all the same, only not by name.
                Err(error) if is_pipe && error.raw_os_error() == Some(libc::EPERM) => {}
                given => given?,
            }
        }
    }
    Ok(())
}
