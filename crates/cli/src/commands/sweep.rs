//! `bastide sweep`

use std::process::ExitCode;

use bastide::{Error, ErrorKind, Orphans, Result, SessionId, SweepItem, SweepMode, SweepOptions};
use bastide_runs::{RunSweep, Sandbox};
use serde_json::{Value, json};

use crate::clients::{Clients, clients, had_runs, local_backend, pods_backend, run_home};
use crate::ui::Ui;

/// Clear away what was left behind
///
/// Removes sessions that were interrupted while they were made, removals that were interrupted, processes
/// and files no session needs, and what killed runs of agents left: sessions, work trees, branches without a change. Sessions that run or are stopped are left alone. Sessions that ended by
/// themselves keep their files, and what cannot be told is kept, too; both are named on standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Remove sessions that ended by themselves or were lost, too, with their files
    #[arg(long)]
    ended: bool,

    /// Remove guests of other versions that no pod has any more, too, from the Kubernetes namespaces of this home
    #[arg(long)]
    guests: bool,

    /// Remove nothing, and say what would be
    #[arg(long)]
    dry_run: bool,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: SweepArgs) -> Result<ExitCode> {
    let client = clients()?;
    // The sessions of killed runs first: they are removed, whatever a sweep of sessions would keep.
    let runs = match had_runs()? {
        true => runs(&client, args.dry_run).await?,
        false => RunSweep::default(),
    };
    let mut options = SweepOptions::default();
    options.ended = args.ended;
    options.dry_run = args.dry_run;
    let report = client.sweep(options).await?;
    let guests = match (args.guests, args.dry_run) {
        (false, _) => Orphans::default(),
        (true, true) => pods_backend()?.sweep_guests(SweepMode::Report).await?,
        (true, false) => pods_backend()?.sweep_guests(SweepMode::Remove).await?,
    };
    client.flush().await;
    if args.json {
        ui.json(&json!({
            "runs": {
                "removed": runs.ended,
                "taken_back": runs.removed,
                "unclear": runs.unclear.iter().map(|(path, why)| json!({ "what": path, "why": why }))
                    .collect::<Value>(),
                "running": runs.running,
                "kept": runs.left,
            },
            "guests": {
                "removed": guests.removed,
                "unclear": guests.unclear.iter().map(|(what, why)| json!({ "what": what, "why": why }))
                    .collect::<Value>(),
            },
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
        for path in &runs.ended {
            ui.line(&format!("{removed} {}: its run was killed", path.display()))?;
        }
        for what in &runs.removed {
            ui.line(&format!("{removed} {what}: of a run that was killed"))?;
        }
        for (path, why) in &runs.unclear {
            ui.note(&format!("kept {}: {why}", path.display()));
        }
        for what in &guests.removed {
            ui.line(&format!("{removed} {what}: no pod has this guest"))?;
        }
        for (what, why) in &guests.unclear {
            ui.note(&format!("kept the guests of {what}: {why}"));
        }
        for SweepItem { what, why, .. } in &report.removed {
            ui.line(&format!("{removed} {what}: {why}"))?;
        }
        for SweepItem { what, why, .. } in &report.ended {
            ui.note(&format!("kept {what}, which has ended: {why}; `sweep --ended` removes it"));
        }
        for SweepItem { what, why, .. } in &report.unclear {
            ui.note(&format!("kept {what}: {why}"));
        }
    }
    if report.failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let failed: Vec<_> =
        report.failed.iter().map(|SweepItem { what, why, .. }| format!("{what}: {why}")).collect();
    let message = format!("not everything could be removed: {}", failed.join("; "));
    Err(Error::new(ErrorKind::Io, message))
}

/// Takes back what killed runs of agents left, or says what there is.
async fn runs(clients: &Clients, dry_run: bool) -> Result<RunSweep> {
    let home = run_home()?;
    if dry_run {
        return Sandbox::look_for_killed(&home);
    }
    let remove = async |id: &SessionId| clients.delete(id).await;
    Sandbox::sweep(local_backend()?.as_ref(), &home, remove).await
}

fn object(swept: &SweepItem) -> Value {
    json!({ "id": swept.id, "what": swept.what, "why": swept.why })
}
