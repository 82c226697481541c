//! `bastide sweep`

use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result, Swept};
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::Ui;

/// Clear away what was left behind
///
/// Removes sessions that have ended or were interrupted while they were made, and processes and files no
/// session needs. Sessions that run are left alone.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: SweepArgs) -> Result<ExitCode> {
    let client = clients()?;
    let report = client.sweep().await?;
    client.flush().await;
    if args.json {
        ui.json(&json!({
            "removed": report.removed.iter().map(object).collect::<Value>(),
            "failed": report.failed.iter().map(object).collect::<Value>(),
            "kept": report.kept,
            "indexed": report.indexed,
        }))?;
    } else {
        for Swept { what, why, .. } in &report.removed {
            ui.line(&format!("removed {what}: {why}"))?;
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
