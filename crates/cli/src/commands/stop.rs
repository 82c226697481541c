//! `bastide stop`

use std::process::ExitCode;

use bastide::{Result, SessionStatus};
use serde_json::{Value, json};

use crate::clients::{Clients, clients};
use crate::ui::{Failures, Ui};

/// Save sessions and end everything that runs in them
///
/// Afterwards nothing of a session runs. Its files stay, and `resume` goes on with it. What cannot be
/// saved is said, and the session is shut down all the same.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The sessions
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,

    /// Stop every session of this home that runs
    #[arg(long, conflicts_with = "ids")]
    all: bool,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: StopArgs) -> Result<ExitCode> {
    let client = clients()?;
    let mut stopped: Vec<Value> = Vec::new();
    let mut failures = Failures::default();
    let ids = match args.all {
        true => running(&client).await?,
        false => args.ids,
    };
    for id in &ids {
        let done = match client.find(id) {
            Ok(id) => client.stop(&id).await.map(|saved| (id, saved)),
            Err(error) => Err(error),
        };
        match done {
            Ok((id, saved)) => {
                for (path, why) in &saved.left_out {
                    ui.note(&format!("{path} is not in the snapshot: {why}"));
                }
                let left_out = saved.left_out.iter();
                let left_out: Vec<Value> =
                    left_out.map(|(path, why)| json!({ "path": path, "why": why })).collect();
                stopped.push(json!({ "id": id, "state": "stopped", "left_out": left_out }));
            }
            // One that could not be saved is no reason to leave the others running.
            Err(error) => failures.add(error),
        }
    }
    client.flush().await;
    if args.json && (failures.is_empty() || !stopped.is_empty()) {
        ui.json(&stopped.into())?;
    }
    failures.report(ui)
}

/// The sessions there is something to stop in.
async fn running(client: &Clients) -> Result<Vec<String>> {
    let is_running =
        |status: SessionStatus| matches!(status, SessionStatus::Running | SessionStatus::Stopping);
    let all = client.list().await?.into_iter().filter(|info| is_running(info.status));
    Ok(all.map(|info| info.id.to_string()).collect())
}
