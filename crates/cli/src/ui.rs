//! The only place that prints.

use std::io::{self, Write};

use anstream::eprintln;
use anstyle::{AnsiColor, Style};
use bastide::{Error, ErrorKind, Receipt, Result};

/// The exit code of a failure of Bastide itself.
pub(crate) const OWN_FAILURE: u8 = 125;

const BAD: Style = AnsiColor::Red.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const DIM: Style = Style::new().dimmed();

/// Where people look.
#[derive(Debug)]
pub(crate) struct Ui {
    stdout: io::Stdout,
    stderr: io::Stderr,
}

impl Ui {
    pub(crate) fn new() -> Self {
        Self { stdout: io::stdout(), stderr: io::stderr() }
    }

    /// Passes on what a command wrote to standard output.
    pub(crate) fn command_out(&mut self, data: &[u8]) -> Result<()> {
        pass_on(&mut self.stdout, data)
    }

    /// Passes on what a command wrote to standard error.
    pub(crate) fn command_err(&mut self, data: &[u8]) -> Result<()> {
        pass_on(&mut self.stderr, data)
    }

    /// Shows a failure: what happened, and what to do.
    pub(crate) fn error(&self, error: &Error) {
        eprintln!("{BAD}error:{BAD:#} {error}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            eprintln!("  {DIM}because:{DIM:#} {cause}");
            source = cause.source();
        }
        if let Some(hint) = error.hint_text() {
            eprintln!("  {GOOD}hint:{GOOD:#} {hint}");
        }
    }

    /// Shows something that is no failure of Bastide's own.
    pub(crate) fn note(&self, text: &str) {
        eprintln!("{DIM}bastide:{DIM:#} {text}");
    }

    /// Shows what is in force in a session.
    pub(crate) fn receipt(&self, id: &str, receipt: &Receipt) {
        let Receipt { rung, network, user, walls, not_enforced, .. } = receipt;
        eprintln!("{DIM}session{DIM:#}  {id}");
        eprintln!("{DIM}rung{DIM:#}     {GOOD}{}{GOOD:#}", rung.as_str());
        eprintln!("{DIM}network{DIM:#}  {}", network.as_str());
        eprintln!("{DIM}user{DIM:#}     {user}");
        for wall in walls {
            eprintln!("{DIM}wall{DIM:#}     {wall}");
        }
        for missing in not_enforced {
            eprintln!("{BAD}open{BAD:#}     {missing}");
        }
    }
}

fn pass_on(to: &mut impl Write, data: &[u8]) -> Result<()> {
    let written = to.write_all(data).and_then(|()| to.flush());
    written.map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot pass on the command's output: {error}"))
    })
}
