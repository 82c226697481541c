//! Commands to run in a session.

use std::time::Duration;

use bastide_proto::{GuestPath, TerminalSize};
use bytes::Bytes;

use crate::session::output::DEFAULT_LIMIT;

/// A command to run in a session.
///
/// ```
/// use std::time::Duration;
///
/// use bastide::Command;
///
/// let build = Command::new(["make", "-j2"]).env("CI", "1").timeout(Duration::from_secs(60));
/// let listing = Command::shell("ls *.rs | wc -l");
/// # drop((build, listing));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) cwd: Option<GuestPath>,
    pub(crate) user: Option<String>,
    pub(crate) input: Input,
    pub(crate) timeout: Option<Duration>,
    pub(crate) terminal: Option<TerminalSize>,
    pub(crate) output_limit: usize,
    /// Whether it was given as a line for the shell.
    pub(crate) is_shell: bool,
}

/// Where a command's input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Input {
    /// From nowhere.
    None,
    /// From these bytes.
    Bytes(Bytes),
    /// From what is [written](crate::Process::write) to the process while it runs.
    Stream,
}

impl Command {
    /// A program and its arguments, executed as they are.
    pub fn new<A: Into<Vec<u8>>>(argv: impl IntoIterator<Item = A>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            input: Input::None,
            timeout: None,
            terminal: None,
            output_limit: DEFAULT_LIMIT,
            is_shell: false,
        }
    }

    /// A line for the shell: `sh -c` on this machine, and a login shell, `sh -lc`, where the machine has a
    /// system of its own, which may say in its profile where programs are.
    #[must_use]
    pub fn shell(line: &str) -> Self {
        Self { is_shell: true, ..Self::new(["sh", "-c", line]) }
    }

    /// Sets an environment variable for this command.
    #[must_use]
    pub fn env(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts the command here instead of in the workspace's root.
    #[must_use]
    pub fn cwd(mut self, cwd: GuestPath) -> Self {
        self.cwd = Some(cwd);
        self
    }

    /// Runs the command as this user of the sandbox, by name or number, instead of the session's own; an empty name is the
    /// session's own.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into()).filter(|user| !user.is_empty());
        self
    }

    /// Gives the command something to read.
    #[must_use]
    pub fn input(mut self, input: impl Into<Bytes>) -> Self {
        self.input = Input::Bytes(input.into());
        self
    }

    /// Lets input be [written](crate::Process::write) while the command runs.
    #[must_use]
    pub fn stream_input(mut self) -> Self {
        self.input = Input::Stream;
        self
    }

    /// Runs the command on a terminal of this size. What it says then comes as standard output, and
    /// what is [written](crate::Process::write) is typed.
    #[must_use]
    pub fn terminal(mut self, rows: u16, columns: u16) -> Self {
        self.terminal = Some(TerminalSize { rows, columns });
        self.input = Input::Stream;
        self
    }

    /// Keeps at most this many bytes of each stream where the output is collected: the first half
    /// from the beginning, the second from the end. 64 MiB unless said otherwise.
    #[must_use]
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// Ends the command, and everything descended from it, after this long.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}
