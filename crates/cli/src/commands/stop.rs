//! `bastide stop`

use std::process::ExitCode;

use bastide::Result;
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::Ui;

/// Save sessions and end everything that runs in them
///
/// Afterwards nothing of a session runs. Its files stay, and `resume` goes on with it. What cannot be
/// saved is said, and the session is shut down all the same.
#[derive(Debug, clap::Args)]
pub(crate) struct StopArgs {
    /// The sessions
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: StopArgs) -> Result<ExitCode> {
    let client = clients()?;
    let mut stopped: Vec<Value> = Vec::new();
    let mut done = Ok(());
    for id in &args.ids {
        let id = client.find(id)?;
        match client.stop(&id).await {
            Ok(saved) => {
                for (path, why) in &saved.left_out {
                    ui.note(&format!("{path} is not in the snapshot: {why}"));
                }
                let left_out = saved.left_out.iter();
                let left_out: Vec<Value> =
                    left_out.map(|(path, why)| json!({ "path": path, "why": why })).collect();
                stopped.push(json!({ "id": id, "state": "stopped", "left_out": left_out }));
            }
            // One that could not be saved is no reason to leave the others running.
            Err(error) => done = done.and(Err(error)),
        }
    }
    client.flush().await;
    done?;
    if args.json {
        ui.json(&stopped.into())?;
    }
    Ok(ExitCode::SUCCESS)
}
