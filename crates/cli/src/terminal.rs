//! Our own terminal, while a process inside has the use of it.

mod guard;

use std::io::{self, IsTerminal};

use bastide::{Error, ErrorKind, Exit, Process, Result};
use rustix::termios::tcgetwinsize;
use tokio::signal::unix::{SignalKind, signal};

use crate::foreground::{NetworkErrorScanner, follow_with};
use crate::stdin::Stdin;
use crate::ui::Ui;
use guard::{Guard, TerminalSignal};

/// The key that lets go of a process without ending it: Ctrl-].
const RELEASE: u8 = 0x1d;

/// Whether somebody sits at both ends.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// The size of our terminal: rows and columns.
pub(crate) fn size() -> (u16, u16) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}

/// How a process stopped having our terminal.
pub(crate) enum AttachEnd {
    /// It ended.
    Ended(Exit),
    /// Somebody let go of it.
    Left,
    /// A signal of this number came to us.
    Signalled(i32),
}

/// Gives a process on a terminal the use of ours until it ends, or a signal ends us. With `may_leave`,
/// Ctrl-] lets go of it before. What it says is looked through for `network_errors`.
pub(crate) async fn attach(
    ui: &mut Ui,
    process: &mut Process,
    may_leave: bool,
    network_errors: &mut NetworkErrorScanner,
) -> Result<AttachEnd> {
    let failed = |error: io::Error| Error::new(ErrorKind::Io, format!("the terminal: {error}"));
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut guard = Guard::enter().map_err(failed)?;
    let writer = process.writer();
    let (rows, columns) = size();
    writer.resize(rows, columns).await?;
    let typing = async {
        let mut stdin = Stdin::open()?;
        loop {
            tokio::select! {
                typed = stdin.next() => match typed {
                    Some(keys) if may_leave && keys.contains(&RELEASE) => return Ok(AttachEnd::Left),
                    Some(keys) => writer.write(keys).await?,
                    None => return Ok(AttachEnd::Left),
                },
                _ = resized.recv() => {
                    let (rows, columns) = size();
                    writer.resize(rows, columns).await?;
                }
                next_signal = guard.next_signal() => match next_signal {
                    TerminalSignal::End(number) => return Ok(AttachEnd::Signalled(number)),
                    // Its size may be another by now.
                    TerminalSignal::Continued => {
                        let (rows, columns) = size();
                        writer.resize(rows, columns).await?;
                    }
                },
            }
        }
    };
    tokio::select! {
        exit = follow_with(ui, process, |chunk| network_errors.look(chunk)) => exit.map(AttachEnd::Ended),
        returned = typing => returned,
    }
}
