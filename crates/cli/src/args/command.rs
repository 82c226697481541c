//! The options of a command in a session, of `exec` and `run`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, GuestPath, Result, Session};

use super::values::parse_time;
use crate::foreground::{EndNotes, StreamOptions};
use crate::terminal;

/// How a command is started
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The command")]
pub(crate) struct CommandArgs {
    /// Let the command read our standard input
    #[arg(short, long)]
    interactive: bool,

    /// Run the command on a terminal; with -i, on ours
    #[arg(short, long)]
    tty: bool,

    /// User to run it as
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,

    /// Folder to start it in, from the root or from the workspace
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// End the command, and everything it started, after this long (such as 500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Say nothing of our own about how the command ended
    #[arg(short, long)]
    quiet: bool,
}

impl CommandArgs {
    /// Refuses what cannot be had, before anything is made for it.
    pub(crate) fn check(&self, json: bool, detach: bool) -> Result<()> {
        let refuse = |message: &str, hint: &str| {
            let error = Error::new(ErrorKind::InvalidInput, message);
            Err(error.with_context("option", "--tty").with_hint(hint))
        };
        if self.tty && json {
            return refuse(
                "--tty: what is drawn on a terminal is no object",
                "leave out --json or -t",
            );
        }
        if self.tty && self.interactive && !detach && !terminal::is_there() {
            let message = "--tty: standard input and output are not both a terminal";
            return refuse(message, "leave out -t, or use a terminal");
        }
        Ok(())
    }

    /// Whose streams the command has.
    pub(crate) fn streams(&self) -> StreamOptions {
        StreamOptions { reads: self.interactive, terminal: self.tty }
    }

    /// What is said about the end of the command.
    pub(crate) fn notes(&self, argv: &[OsString]) -> EndNotes {
        EndNotes::new(argv, self.timeout, self.quiet)
    }

    /// The command.
    pub(crate) fn command(&self, session: &Session, argv: Vec<OsString>) -> Result<Command> {
        let mut command = Command::new(argv.into_iter().map(OsString::into_vec));
        if let Some(user) = &self.user {
            command = command.user(user);
        }
        if let Some(workdir) = &self.workdir {
            command = command.cwd(folder(session, workdir)?);
        }
        if let Some(timeout) = self.timeout {
            command = command.timeout(timeout);
        }
        if self.tty {
            let (rows, columns) = terminal::size();
            command = command.terminal(rows, columns);
        } else if self.interactive {
            command = command.stream_input();
        }
        Ok(command)
    }
}

/// A folder inside, as somebody types it.
fn folder(session: &Session, text: &str) -> Result<GuestPath> {
    let parsed = if text.starts_with('/') {
        text.parse()
    } else {
        let relative = text.trim_start_matches("./").trim_end_matches('/');
        match relative {
            "" | "." => Ok(session.root().clone()),
            relative => session.root().join(relative),
        }
    };
    parsed.map_err(|error| {
        let message = format!("cannot start in {text:?}: {error}");
        Error::new(ErrorKind::InvalidInput, message)
    })
}
