//! Commands as points.

use std::sync::Arc;

use super::PointKind;
use super::context::{JournalContext, new_point};
use crate::{Command, Exit, Reason, Result};

/// How much of a command line a point shows.
const LABEL: usize = 300;

/// A command whose end is to be put on record.
#[derive(Debug, Clone)]
pub(crate) struct CommandPoint {
    context: Arc<JournalContext>,
    number: u64,
}

impl CommandPoint {
    /// Keeps what the workspace is before a command.
    pub(crate) async fn begin(context: JournalContext, command: &Command) -> Result<Self> {
        let number = {
            let (_lock, mut journal) = context.locked().await?;
            let (saved, frozen, _) = context.save().await?;
            let mut point =
                new_point(&journal, PointKind::Command, label(command), saved.fingerprint);
            point.frozen = frozen;
            let number = point.number;
            journal.push(point);
            context.commit(&mut journal)?;
            number
        };
        Ok(Self { context: Arc::new(context), number })
    }

    /// Puts on record what the command did.
    pub(crate) async fn finish(&self, exit: &Exit) -> Result<()> {
        if exit.reason == Reason::Detached {
            return Ok(());
        }
        let (_lock, mut journal) = self.context.locked().await?;
        let number = self.number;
        let Some(before) = journal.points.iter().find(|point| point.number == number) else {
            return Ok(());
        };
        let before = before.before.clone();
        let (saved, frozen, _) = self.context.save().await?;
        let changes = self.context.summary(&before, &saved.fingerprint).await?;
        let is_last = journal.active().last().is_some_and(|point| point.number == number);
        if is_last {
            journal.last = Some(saved.fingerprint.clone());
        }
        if let Some(point) = journal.points.iter_mut().find(|point| point.number == number) {
            point.exit = Some(exit.code);
            point.frozen += frozen;
            point.changes = changes;
            point.after = Some(saved.fingerprint);
        }
        self.context.commit(&mut journal)
    }
}

/// A command line, bounded.
fn label(command: &Command) -> String {
    let words: Vec<_> = command.argv.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let line = match words.as_slice() {
        // What somebody wrote for a shell is what they know it by.
        [_, _, line] if command.is_shell => line.to_string(),
        _ => words.join(" "),
    };
    match line.char_indices().nth(LABEL) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}
