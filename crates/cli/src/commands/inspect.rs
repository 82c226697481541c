//! `bastide inspect`

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bastide::Result;

use super::ls::{ago, object};
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// Show everything that is known about a session
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: InspectArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.inspect(&client.find(&args.id)?).await?;
    if args.json {
        ui.json(&object(&session))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["WHAT", "IS"]);
    let mut row = |what: &str, is: String| table.row([what.to_owned(), is]);
    row("id", session.id.to_string());
    row("state", session.status.as_str().to_owned());
    row("backend", session.backend.clone());
    row("root", session.root.clone());
    row("created", ago(UNIX_EPOCH + Duration::from_millis(session.created_at_ms)));
    if let Some(pid) = session.guest_pid {
        row("guest", format!("process {pid}"));
    }
    if let Some(end) = &session.end {
        row("ended", format!("{}: {}", end.reason, end.detail));
    }
    if let Some(trouble) = &session.trouble {
        row("trouble", trouble.clone());
    }
    if let Some(receipt) = &session.receipt {
        row("rung", receipt.rung.as_str().to_owned());
        row("network", receipt.network.as_str().to_owned());
        row("user", receipt.user.clone());
        receipt.walls.iter().for_each(|wall| row("wall", wall.clone()));
        receipt.not_enforced.iter().for_each(|open| row("open", open.clone()));
        row("points", receipt.points.as_str().to_owned());
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}
