//! `bastide merge`

use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

use super::undo::{object, show};
use crate::clients::clients;
use crate::ui::Ui;

/// The exit code of a merge with conflicts.
const CONFLICTS: u8 = 1;

/// Take over what was changed in a fork of a session
///
/// Text is merged by lines, anything else as whole files. Where both changed the same, the session's own stays
/// and the fork's lies beside it as NAME.fork-ID; the exit code is 1 then. Processes of the session are ended
/// first. It can be undone.
#[derive(Debug, clap::Args)]
pub(crate) struct MergeArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Its fork
    #[arg(value_name = "FROM")]
    from: String,
}

pub(crate) async fn run(ui: &mut Ui, args: MergeArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let fork = client.attach(&client.find(&args.from)?).await?;
    let done = session.journal().merge(&fork).await?;
    if args.json {
        let mut object = object(&done.transition, true);
        object["merged"] = json!(done.merged);
        let conflicts = done.conflicts.iter();
        object["conflicts"] =
            conflicts.map(|(path, beside)| json!({ "path": path, "beside": beside })).collect();
        ui.json(&object)?;
    } else {
        for (path, beside) in &done.conflicts {
            match beside {
                Some(beside) => ui.note(&format!("conflict: {path}; the fork's is {beside}")),
                None => ui.note(&format!("conflict: {path} was removed in the fork, and stays")),
            }
        }
        show(ui, &done.transition)?;
    }
    let is_whole = done.conflicts.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(CONFLICTS) })
}
