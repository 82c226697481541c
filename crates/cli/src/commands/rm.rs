//! `bastide rm`

use std::process::ExitCode;

use bastide::Result;
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::Ui;

/// Remove sessions, with everything that runs and lies in them
///
/// Works in every state. That there is no session of a name any more is no failure.
#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// The sessions
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: RmArgs) -> Result<ExitCode> {
    let client = clients()?;
    let mut removed: Vec<Value> = Vec::new();
    for id in &args.ids {
        let id = client.find(id)?;
        let found = client.delete(&id).await?;
        removed.push(json!({ "id": id, "removed": found }));
    }
    if args.json {
        ui.json(&removed.into())?;
    }
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
