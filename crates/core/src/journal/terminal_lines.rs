//! Lines typed on a terminal as points.
//!
//! A line begins where whoever types presses the key that ends it, while the command that was started on the terminal, such as a
//! shell, is in the foreground: what the workspace is then is kept before the key arrives. What comes of the
//! line is what changed until the next one. Keys for something that the shell started make no point.

use std::sync::Arc;

use bastide_proto::{End, Request, TerminalState};
use tokio::sync::Mutex;

use super::PointKind;
use super::command::CommandPoint;
use super::context::{JournalContext, new_point};
use crate::link::{Incoming, broken, decode};
use crate::{Error, ErrorKind, ProcessId, Result};

/// How much of a line is kept while it is typed.
const LONGEST: usize = 4096;

/// What a line is called that the terminal did not show.
const HIDDEN: &str = "(hidden input)";

/// Makes points of the lines that are typed on a terminal.
#[derive(Debug)]
pub(crate) struct TerminalLines {
    context: Arc<JournalContext>,
    process: ProcessId,
    lines: Mutex<LineState>,
}

#[derive(Debug, Default)]
struct LineState {
    /// The point whose end is not known yet: of the command on the terminal, and then of the last line.
    open: Option<u64>,
    typed: TypedLine,
    /// There is no terminal, or a guest that does not say who has it.
    is_off: bool,
}

impl CommandPoint {
    /// What makes points of the lines that are typed on this command's terminal.
    pub(crate) fn lines(&self, process: ProcessId) -> TerminalLines {
        let lines = LineState { open: Some(self.number), ..LineState::default() };
        TerminalLines { context: Arc::clone(&self.context), process, lines: Mutex::new(lines) }
    }
}

impl TerminalLines {
    /// The same for a process that somebody else started.
    pub(crate) fn of(context: JournalContext, process: ProcessId) -> Self {
        Self { context: Arc::new(context), process, lines: Mutex::default() }
    }

    /// Takes note of keys that are about to be typed. Nobody is kept from typing: a line of which no point can be made
    /// belongs to the one before it.
    pub(crate) async fn typed(&self, keys: &[u8]) {
        let mut lines = self.lines.lock().await;
        if lines.is_off || keys.is_empty() {
            return;
        }
        let begins = lines.typed.is_empty();
        let line = lines.typed.add(keys);
        // What a program reads that was started on the terminal is no part of the next line.
        if !begins && line.is_none() {
            return;
        }
        match self.state().await {
            Ok(state) if state.is_own => {
                if let Some(line) = line.filter(|line| !line.is_blank()) {
                    let label = if state.is_hidden { HIDDEN.to_owned() } else { line.label() };
                    // It belongs to the line before it then.
                    drop(self.begin(&mut lines, label).await);
                }
            }
            Ok(_) => lines.typed = TypedLine::default(),
            Err(error) => {
                let has_none = [ErrorKind::Unsupported, ErrorKind::InvalidInput];
                lines.is_off = has_none.contains(&error.kind());
            }
        }
    }

    /// Puts on record what came of the last line: the terminal is gone.
    pub(crate) async fn end(&self) -> Result<()> {
        let open = self.lines.lock().await.open.take();
        let Some(number) = open else { return Ok(()) };
        CommandPoint { context: Arc::clone(&self.context), number }.close(None).await
    }

    async fn begin(&self, lines: &mut LineState, label: String) -> Result<()> {
        let context = &self.context;
        let (_lock, mut journal) = context.locked().await?;
        let (saved, frozen, _) = context.save().await?;
        let now = saved.fingerprint;
        let ends = |number: Option<u64>| {
            journal
                .active()
                .iter()
                .find(|point| Some(point.number) == number && point.after.is_none() && !point.aside)
        };
        let last = ends(lines.open).map(|point| (point.number, point.before.clone()));
        if let Some((number, before)) = last {
            let changes = context.summary(&before, &now).await?;
            let ended = journal.points.iter_mut().find(|point| point.number == number);
            if let Some(ended) = ended {
                (ended.after, ended.changes) = (Some(now.clone()), changes);
            }
        }
        let mut point = new_point(&journal, PointKind::Command, context.bounded(label), now);
        point.frozen = frozen;
        let number = point.number;
        journal.push(point);
        context.commit(&mut journal)?;
        lines.open = Some(number);
        Ok(())
    }

    /// Who has the terminal.
    async fn state(&self) -> Result<TerminalState> {
        let mut stream =
            self.context.link.open(Request::Terminal { process: self.process.0 }).await?;
        match stream.from_guest.next().await? {
            Incoming::Item(item) => {
                let state = decode(&item)?;
                stream.finish().await?;
                Ok(state)
            }
            Incoming::End(End::Failed(fault)) => Err(Error::new(ErrorKind::Io, fault.message)),
            _ => Err(broken("not the state of a terminal")),
        }
    }
}

/// A line as it is being typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TypedLine {
    text: Vec<u8>,
    /// Whether keys changed it in ways that only whoever reads it knows.
    is_edited: bool,
    /// What has come of a sequence of bytes that is one key.
    key: Vec<u8>,
}

impl TypedLine {
    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.key.is_empty() && !self.is_edited
    }

    fn is_blank(&self) -> bool {
        !self.is_edited && self.text.trim_ascii().is_empty()
    }

    /// What it is called: as it was typed, with a mark where it may be something else.
    fn label(&self) -> String {
        let text = String::from_utf8_lossy(&self.text);
        let shown: String = text.chars().filter(|letter| !letter.is_control()).collect();
        format!("{}{}", shown.trim(), if self.is_edited { "…" } else { "" })
    }

    /// Adds keys. What is complete by them is returned; of several lines at once, all of them as one.
    fn add(&mut self, keys: &[u8]) -> Option<Self> {
        let mut whole: Option<Self> = None;
        for key in keys {
            if matches!(key, b'\r' | b'\n') && self.key.is_empty() {
                let line = std::mem::take(self);
                match &mut whole {
                    Some(whole) if !line.is_blank() => {
                        whole.text.extend_from_slice(b"; ");
                        whole.text.extend_from_slice(&line.text);
                        whole.is_edited |= line.is_edited;
                    }
                    Some(_) => {}
                    None => whole = Some(line),
                }
            } else {
                self.press(*key);
            }
        }
        whole
    }

    fn press(&mut self, key: u8) {
        const ESCAPE: u8 = 0x1b;
        if !self.key.is_empty() || key == ESCAPE {
            self.key.push(key);
            let is_whole = match self.key.as_slice() {
                [_] | [_, b'[' | b'O'] => false,
                [_, b'[', rest @ ..] => rest.last().is_some_and(|last| (0x40..0x7f).contains(last)),
                _ => true,
            };
            if is_whole || self.key.len() > 32 {
                let key = std::mem::take(&mut self.key);
                // What marks something that was pasted changes nothing.
                self.is_edited |= !matches!(key.as_slice(), b"\x1b[200~" | b"\x1b[201~");
            }
            return;
        }
        match key {
            0x08 | 0x7f => {
                // A letter may be several bytes.
                while self.text.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            // Given up, or removed.
            0x03 | 0x15 => *self = Self::default(),
            b' '..=0x7e | 0x80.. if self.text.len() < LONGEST => self.text.push(key),
            _ => self.is_edited = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(typed: &[&[u8]]) -> Vec<String> {
        let mut line = TypedLine::default();
        typed.iter().filter_map(|keys| line.add(keys)).map(|line| line.label()).collect()
    }

    #[test]
    fn calls_lines_what_was_typed() {
        assert_eq!(labels(&[b"ls -l\r"]), ["ls -l"]);
        assert_eq!(labels(&[b"l", b"sx", b"\x7f", b"\r", b"pwd\n"]), ["ls", "pwd"]);
        assert_eq!(labels(&["gr\u{fc}\u{df}\x7f\x7f\x7fo\r".as_bytes()]), ["go"]);
        assert_eq!(labels(&[b"wrong\x15right\r"]), ["right"]);
        assert_eq!(labels(&[b"one\ntwo\n\nthree\n"]), ["one; two; three"]);
        assert_eq!(labels(&[b"\x1b[200~pasted\x1b[201~\r"]), ["pasted"]);
    }

    #[test]
    fn says_where_a_line_may_be_another() {
        // The last one of a history, and a name that the shell completes.
        assert_eq!(
            labels(&[b"\x1b[A\r", b"cat no\t\r", b"\x1bOA", b"x\r"]),
            ["…", "cat no…", "x…"]
        );
        assert_eq!(labels(&[b"\x1b", b"[", b"A", b"\r"]), ["…"], "a key in pieces is a key");
    }

    #[test]
    fn tells_empty_lines_from_lines_that_are_not_known() {
        let mut line = TypedLine::default();
        assert!(line.add(b"  \r").is_some_and(|line| line.is_blank()));
        assert!(line.add(b"\x1b[A\r").is_some_and(|line| !line.is_blank()));
        assert!(line.is_empty() && line.add(b"x").is_none() && !line.is_empty());
    }
}
