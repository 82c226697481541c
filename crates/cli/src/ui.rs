//! The only place that prints.

mod escape;
mod failures;
mod hint;
mod option_names;
mod progress;
mod table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use bastide::{Error, ErrorKind, Receipt, Result, Session};
use serde_json::{Value, json};

pub(crate) use escape::{escaped, escaped_json};
pub(crate) use failures::Failures;
pub(crate) use hint::hint;
pub(crate) use option_names::{message, with_flags};
pub(crate) use progress::ProgressLine;
pub(crate) use table::Table;

/// The exit code of a failure of Bastide itself.
pub(crate) const OWN_FAILURE: u8 = 125;

/// The exit code of a program that wrote to a pipe nobody reads: 128 and the number of `SIGPIPE`.
const NOBODY_READS: u8 = 141;

const BAD: Style = AnsiColor::Red.on_default().bold();
const GOOD: Style = AnsiColor::Green.on_default();
const DIM: Style = Style::new().dimmed();

/// Where people and programs look.
#[derive(Debug)]
pub(crate) struct Ui {
    stdout: io::Stdout,
    stderr: io::Stderr,
    json: bool,
}

/// Shows how far something is, on a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notices {
    shown: bool,
}

impl Notices {
    /// Shows one step.
    pub(crate) fn say(self, text: &str) {
        if self.shown {
            // A terminal that is gone is no reason to stop.
            drop(writeln!(anstream::stderr(), "{DIM}bastide:{DIM:#} {}", escaped(text)));
        }
    }
}

impl Ui {
    /// With `json`, everything Bastide itself says is for programs.
    pub(crate) fn new(json: bool) -> Self {
        Self { stdout: io::stdout(), stderr: io::stderr(), json }
    }

    /// Passes on what a command wrote to standard output.
    pub(crate) fn command_out(&mut self, data: &[u8]) -> Result<()> {
        pass_on(&mut self.stdout, data)
    }

    /// Passes on what a command wrote to standard error.
    pub(crate) fn command_err(&mut self, data: &[u8]) -> Result<()> {
        pass_on(&mut self.stderr, data)
    }

    /// Prints the result of a command of ours for a program.
    pub(crate) fn json(&mut self, value: &Value) -> Result<()> {
        self.json_text(&value.to_string())
    }

    /// Prints JSON that is text already.
    pub(crate) fn json_text(&mut self, text: &str) -> Result<()> {
        pass_on(&mut self.stdout, format!("{}\n", escaped_json(text)).as_bytes())
    }

    /// Prints one line of a result; its cells are apart by tabs.
    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        let cells: Vec<_> = line.split('\t').map(escaped).collect();
        pass_on(&mut self.stdout, format!("{}\n", cells.join("\t")).as_bytes())
    }

    /// Prints a table: for people on a terminal, for programs elsewhere.
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let text =
            if self.stdout.is_terminal() { table.for_people() } else { table.for_programs() };
        let mut stdout = anstream::AutoStream::auto(&mut self.stdout);
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(not_written)
    }

    /// Prints the rows of a table as they come; its titles only where people begin to read.
    pub(crate) fn rows(&mut self, table: &Table, is_first: bool) -> Result<()> {
        if is_first || !self.stdout.is_terminal() {
            return self.table(table);
        }
        let text = table.for_people();
        let (_, rows) = text.split_once('\n').unwrap_or_default();
        pass_on(&mut self.stdout, rows.as_bytes())
    }

    /// Shows a failure: what happened, and what to do. Returns the exit code for it.
    pub(crate) fn failure(&mut self, error: &Error) -> ExitCode {
        if is_nobody_reads(error) {
            return ExitCode::from(NOBODY_READS);
        }
        if self.json {
            let error = json!({
                "code": error.code(),
                "message": message(error),
                "hint": hint(error),
                "context": option_names::context(error),
            });
            let text = json!({ "error": error }).to_string();
            self.say(&format!("{}\n", escaped_json(&text)));
            return ExitCode::from(OWN_FAILURE);
        }
        let mut text = format!("{BAD}error:{BAD:#} {}\n", escaped(&message(error)));
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            text.push_str(&format!(
                "  {DIM}because:{DIM:#} {}\n",
                escaped(&with_flags(&cause_text))
            ));
            source = cause.source();
        }
        if let Some(hint) = hint(error) {
            text.push_str(&format!("  {GOOD}hint:{GOOD:#} {}\n", escaped(&hint)));
        }
        self.say(&text);
        ExitCode::from(OWN_FAILURE)
    }

    /// Shows something that is no failure of Bastide's own.
    pub(crate) fn note(&self, text: &str) {
        self.note_styled(&escaped(text));
    }

    /// The same of text that has colours of our own; what of it is not ours is escaped already.
    fn note_styled(&self, text: &str) {
        if !self.json {
            self.say(&format!("{DIM}bastide:{DIM:#} {text}\n"));
        }
    }

    /// Shows a step of an agent at work, on standard error.
    pub(crate) fn step(&self, text: &str) {
        if !self.json {
            let lines: String = text.lines().map(|line| format!("{}\n", escaped(line))).collect();
            self.say(&lines);
        }
    }

    /// A way to show how far something is, for whoever watches.
    pub(crate) fn notices(&self) -> Notices {
        Notices { shown: !self.json && io::stderr().is_terminal() }
    }

    /// Prints which session there is now: its id, or for a program all that is known of it.
    pub(crate) fn session(&mut self, session: &Session, json: bool, verbose: bool) -> Result<()> {
        let id = session.id().as_str();
        match verbose {
            true => self.receipt(id, session.receipt()),
            false => self.unheld_limits(session.receipt()),
        }
        if !json {
            return self.line(id);
        }
        let root = session.root().as_str();
        self.json(&json!({ "id": id, "root": root, "receipt": session.receipt() }))
    }

    /// Shows what is in force in a session.
    pub(crate) fn receipt(&self, id: &str, receipt: &Receipt) {
        let Receipt { rung, network, user, walls, not_enforced, .. } = receipt;
        let line = |name: &str, text: &str| format!("{DIM}{name:<8}{DIM:#} {}\n", escaped(text));
        let mut text = line("session", id);
        text.push_str(&format!("{DIM}{:<8}{DIM:#} {GOOD}{}{GOOD:#}\n", "rung", rung.as_str()));
        text.push_str(&line("network", network.as_str()));
        text.push_str(&line("user", user));
        for wall in walls {
            text.push_str(&line("wall", wall));
        }
        for missing in not_enforced {
            text.push_str(&format!("{BAD}{:<8}{BAD:#} {}\n", "open", escaped(missing)));
        }
        self.say(&text);
    }

    /// Says which limits that were asked for do not hold, or not for all there is. A program finds them in the receipt.
    pub(crate) fn unheld_limits(&self, receipt: &Receipt) {
        for gap in receipt.unheld_limits() {
            self.note_styled(&format!("{BAD}not enforced:{BAD:#} {}", escaped(gap)));
        }
    }

    /// Says something on standard error. Where nobody listens there, nobody is left to be told so.
    fn say(&self, text: &str) {
        let mut stderr = anstream::AutoStream::auto(self.stderr.lock());
        drop(stderr.write_all(text.as_bytes()));
    }
}

fn pass_on(to: &mut impl Write, data: &[u8]) -> Result<()> {
    to.write_all(data).and_then(|()| to.flush()).map_err(not_written)
}

fn not_written(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot pass on the output: {error}")).with_source(error)
}

/// Whether an error is that whoever read our output does not want more: that is no news to anybody.
fn is_nobody_reads(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
        && error.kind() == ErrorKind::Io
}
