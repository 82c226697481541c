//! Our own terminal, while a process inside has the use of it.

use std::io::{self, IsTerminal};

use bastide::{Error, ErrorKind, Process, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

use crate::conduct::follow;
use crate::stdin::Stdin;
use crate::ui::Ui;

/// The key that lets go of a process without ending it: Ctrl-].
const LET_GO: u8 = 0x1d;

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

/// Our terminal in a state in which every key goes through; it gets its own back when this is dropped.
struct Raw {
    before: Termios,
}

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If it cannot be set back, there is nothing else to try.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Gives a process on a terminal the use of ours until it ends. With `may_leave`, Ctrl-] lets go of it
/// before; then there is no end to tell.
pub(crate) async fn lend(
    ui: &mut Ui,
    process: &mut Process,
    may_leave: bool,
) -> Result<Option<bastide::Exit>> {
    let failed = |error: io::Error| Error::new(ErrorKind::Io, format!("the terminal: {error}"));
    let raw = Raw::enter().map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let writer = process.writer();
    let (rows, columns) = size();
    writer.resize(rows, columns).await?;
    let typing = async {
        let mut stdin = Stdin::open();
        loop {
            tokio::select! {
                typed = stdin.next() => match typed {
                    Some(keys) if may_leave && keys.contains(&LET_GO) => return Ok(()),
                    Some(keys) => writer.write(keys).await?,
                    None => return Ok(()),
                },
                _ = resized.recv() => {
                    let (rows, columns) = size();
                    writer.resize(rows, columns).await?;
                }
            }
        }
    };
    let ended = tokio::select! {
        exit = follow(ui, process) => exit.map(Some),
        left = typing => left.map(|()| None),
    };
    drop(raw);
    ended
}
