//! `bastide checkpoint`

use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

use super::log::describe;
use crate::clients::clients;
use crate::ui::Ui;

/// Make a point of a session's workspace, to come back to
///
/// Files are kept, processes are not: they stand still for as long as it takes, and go on. Prints the number of the
/// point. `undo` goes back to it, `restore` brings single files back.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// What the point is called
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

pub(crate) async fn run(ui: &mut Ui, args: CheckpointArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let made = session.journal().checkpoint(args.name.as_deref()).await?;
    if args.json {
        let mut object = describe(&made.point, true);
        object["processes"] = json!(made.processes);
        object["entries"] = json!(made.entries);
        object["bytes"] = json!(made.bytes);
        object["files_read"] = json!(made.files_read);
        object["bytes_stored"] = json!(made.bytes_stored);
        object["left_out"] = json!(made.left_out);
        ui.json(&object)?;
    } else {
        for (path, why) in &made.left_out {
            ui.note(&format!("left out {path}: {why}"));
        }
        if made.processes > 0 {
            let (count, time) = (made.processes, made.point.frozen.as_millis());
            ui.note(&format!("{count} processes stood still for {time} ms"));
        }
        ui.line(&made.point.number.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}
