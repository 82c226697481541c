//! `bastide undo`

use std::process::ExitCode;

use bastide::{Result, TransitionReport};
use serde_json::{Value, json};

use super::log::{changed, describe};
use crate::clients::clients;
use crate::ui::Ui;

/// Make the workspace of a session what it was before its last command
///
/// Without `--journal`: what it was at the last checkpoint. Processes are ended first. Files come back, processes do
/// not. In a folder of yours only what changed while commands ran is taken back; what you changed between them stays, and
/// where both are the same file nothing is done at all. `redo` takes an undo back.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArgs {
    /// How many steps to go back
    #[arg(short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) async fn run(ui: &mut Ui, args: UndoArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let done = session.journal().undo(usize::try_from(args.steps).unwrap_or(usize::MAX)).await?;
    match args.json {
        true => ui.json(&object(&done, false))?,
        false => show(ui, &done)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows where a workspace is now.
pub(crate) fn show(ui: &mut Ui, done: &TransitionReport) -> Result<()> {
    if done.ended > 0 {
        ui.note(&format!("{} processes were ended", done.ended));
    }
    ui.line(&format!("{}\t{}", done.at, changed(&done.changes)))
}

/// The same for programs. Points of an undo are not in effect any more, those of all else are.
pub(crate) fn object(done: &TransitionReport, is_applied: bool) -> Value {
    let points: Vec<_> = done.points.iter().map(|point| describe(point, is_applied)).collect();
    json!({ "at": done.at, "ended": done.ended, "changes": done.changes, "points": points })
}
