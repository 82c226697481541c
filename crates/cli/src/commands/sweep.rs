//! `bastide sweep`

use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result, SweepOptions, Swept};
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::Ui;

/// Clear away what was left behind
///
/// Removes sessions that were interrupted while they were made, removals that were interrupted, and processes
/// and files no session needs. Sessions that run or are stopped are left alone. Sessions that ended by
/// themselves keep their files, and what cannot be told is kept, too; both are named on standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Remove sessions that ended by themselves or were lost, too, with their files
    #[arg(long)]
    ended: bool,

    /// Remove nothing, and say what would be
    #[arg(long)]
    dry_run: bool,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: SweepArgs) -> Result<ExitCode> {
    let client = clients()?;
    let mut options = SweepOptions::default();
    options.ended = args.ended;
    options.dry_run = args.dry_run;
    let report = client.sweep(options).await?;
    client.flush().await;
    if args.json {
        ui.json(&json!({
            "removed": report.removed.iter().map(object).collect::<Value>(),
            "failed": report.failed.iter().map(object).collect::<Value>(),
            "ended": report.ended.iter().map(object).collect::<Value>(),
            "unclear": report.unclear.iter().map(object).collect::<Value>(),
            "kept": report.kept,
            "indexed": report.indexed,
            "dry_run": args.dry_run,
        }))?;
    } else {
        let removed = if args.dry_run { "would remove" } else { "removed" };
        for Swept { what, why, .. } in &report.removed {
            ui.line(&format!("{removed} {what}: {why}"))?;
        }
        for Swept { what, why, .. } in &report.ended {
            ui.note(&format!("kept {what}, which has ended: {why}; `sweep --ended` removes it"));
        }
        for Swept { what, why, .. } in &report.unclear {
            ui.note(&format!("kept {what}: {why}"));
        }
    }
    if report.failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let failed: Vec<_> =
        report.failed.iter().map(|Swept { what, why, .. }| format!("{what}: {why}")).collect();
    let message = format!("not everything could be removed: {}", failed.join("; "));
    Err(Error::new(ErrorKind::Io, message))
}

fn object(swept: &Swept) -> Value {
    json!({ "id": swept.id, "what": swept.what, "why": swept.why })
}
