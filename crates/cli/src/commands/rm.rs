//! `bastide rm`

use std::process::ExitCode;

use bastide::Result;
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::{Failures, Ui};

/// Remove sessions, with everything that runs and lies in them
///
/// Works in every state. A whole id of which nothing is left is no failure.
#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// The sessions
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,

    /// Remove every session of this home
    #[arg(long, conflicts_with = "ids")]
    all: bool,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: RmArgs) -> Result<ExitCode> {
    let client = clients()?;
    let mut removed: Vec<Value> = Vec::new();
    let mut failures = Failures::default();
    let ids = match args.all {
        true => client.list().await?.into_iter().map(|info| info.id.to_string()).collect(),
        false => args.ids,
    };
    for id in &ids {
        let found = match client.find(id) {
            Ok(id) => client.delete(&id).await.map(|found| json!({ "id": id, "removed": found })),
            Err(error) => Err(error),
        };
        match found {
            Ok(found) => removed.push(found),
            // One that cannot be removed is no reason to keep the others.
            Err(error) => failures.add(error),
        }
    }
    client.flush().await;
    if args.json && (failures.is_empty() || !removed.is_empty()) {
        ui.json(&removed.into())?;
    }
    failures.report(ui)
}
