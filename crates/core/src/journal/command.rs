//! Commands as points.

use std::sync::Arc;
use std::time::Duration;

use super::PointKind;
use super::context::{JournalContext, new_point};
use crate::{Command, Error, Exit, ExitReason, Result};

/// How much of a command line a point shows.
const LABEL: usize = 300;

/// A command whose end is to be put on record.
#[derive(Debug, Clone)]
pub(crate) struct CommandPoint {
    pub(super) context: Arc<JournalContext>,
    pub(super) number: u64,
}

/// The reason why a command was not started, once nothing is on record of it.
pub(crate) async fn withdrawn(point: Option<CommandPoint>, error: Error) -> Error {
    if let Some(point) = point {
        point.withdraw().await;
    }
    error
}

impl CommandPoint {
    /// Keeps what the workspace is before a command.
    pub(crate) async fn begin(context: JournalContext, command: &Command) -> Result<Self> {
        let number = {
            let (_lock, mut journal) = context.locked().await?;
            let (before, frozen) = match context.tree_at_rest(&journal).await? {
                Some(tree) => (tree, Duration::ZERO),
                None => {
                    let (saved, frozen, _) = context.save().await?;
                    (saved.fingerprint, frozen)
                }
            };
            let label = context.label(command);
            let mut point = new_point(&journal, PointKind::Command, label, before);
            point.frozen = frozen;
            let number = point.number;
            journal.push(point);
            context.commit(&mut journal)?;
            number
        };
        Ok(Self { context: Arc::new(context), number })
    }

    /// Takes it off the record: the command was not started.
    async fn withdraw(self) {
        let withdrawn = async {
            let (_lock, mut journal) = self.context.locked().await?;
            journal.withdraw(self.number);
            self.context.commit(&mut journal)
        };
        // Its point stays without an end then.
        drop(Box::pin(withdrawn).await);
    }

    /// Puts on record what the command did.
    pub(crate) async fn finish(&self, exit: &Exit) -> Result<()> {
        match exit.reason {
            ExitReason::Detached => Ok(()),
            _ => self.close(Some(exit.code)).await,
        }
    }

    /// Puts on record what was done until now.
    pub(super) async fn close(&self, code: Option<i32>) -> Result<()> {
        let closed = self.close_point(code).await;
        self.context.collect_garbage().await;
        closed
    }

    async fn close_point(&self, code: Option<i32>) -> Result<()> {
        let (_lock, mut journal) = self.context.locked().await?;
        let number = self.number;
        let Some(index) = journal.points.iter().position(|point| point.number == number) else {
            return Ok(());
        };
        let point = &mut journal.points[index];
        if index >= journal.applied || point.aside || point.after.is_some() {
            // Whoever took it back ended it, and has on record what it had done by then.
            point.exit = code.or(point.exit);
            return self.context.commit(&mut journal);
        }
        let before = point.before.clone();
        let (saved, frozen, _) = self.context.save().await?;
        let changes = self.context.summary(&before, &saved.fingerprint).await?;
        let is_last = journal.active().last().is_some_and(|point| point.number == number);
        if is_last {
            journal.last = Some(saved.fingerprint.clone());
        }
        journal.at_rest = self.context.at_rest(&saved);
        if let Some(point) = journal.points.iter_mut().find(|point| point.number == number) {
            point.exit = code;
            point.frozen += frozen;
            point.changes = changes;
            point.after = Some(saved.fingerprint);
        }
        self.context.commit(&mut journal)
    }
}

impl JournalContext {
    /// A command line without secrets, bounded.
    fn label(&self, command: &Command) -> String {
        let words: Vec<_> = command.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
        let line = match words.as_slice() {
            // What somebody wrote for a shell is what they know it by.
            [_, _, line] if command.is_shell => line.to_string(),
            _ => words.join(" "),
        };
        self.bounded(line)
    }

    /// A line without secrets, bounded.
    pub(super) fn bounded(&self, mut line: String) -> String {
        self.redactor.text(&mut line);
        match line.char_indices().nth(LABEL) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }
}
