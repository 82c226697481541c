//! `bastide diff`

use std::process::ExitCode;

use bastide::{FileDiff, Result};
use serde_json::json;

use crate::clients::clients;
use crate::ui::{Table, Ui};

/// Show what is different between two points of a session, or between a point and now
///
/// Without points: what `undo` would take back.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// Only list the files
    #[arg(long)]
    stat: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Points by number or name; `A..` is from A to now, `0` the beginning, `..` what `undo` would take back
    #[arg(value_name = "A..B")]
    range: Option<String>,

    /// Only what is at this path of the workspace, and below it
    #[arg(value_name = "PATH")]
    path: Option<String>,
}

pub(crate) async fn run(ui: &mut Ui, args: DiffArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let range = args.range.as_deref().filter(|range| *range != "..");
    let found = session.journal().diff(range, args.path.as_deref()).await?;
    if args.json {
        let file = |file: &FileDiff| {
            json!({
                "path": file.path,
                "change": file.kind.as_str(),
                "what": file.what,
                "size_before": file.size_before,
                "size_after": file.size_after,
                "modes": file.modes,
                "lines_added": file.lines_added,
                "lines_removed": file.lines_removed,
                "text": file.text.as_ref().filter(|_| !args.stat),
            })
        };
        let files: Vec<_> = found.files.iter().map(file).collect();
        ui.json(&json!({ "from": found.from, "to": found.to, "files": files }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["CHANGE", "WHAT", "LINES", "SIZE", "PATH"]);
    for file in &found.files {
        let lines = match (file.lines_added, file.lines_removed) {
            (Some(added), Some(removed)) => format!("+{added} -{removed}"),
            _ => String::new(),
        };
        let size = |size: Option<u64>| size.map_or("-".to_owned(), |size| size.to_string());
        let sizes = format!("{} {}", size(file.size_before), size(file.size_after));
        let (kind, what) = (file.kind.as_str().to_owned(), file.what.to_owned());
        table.row([kind, what, lines, sizes, file.path.clone()]);
    }
    ui.table(&table)?;
    if !args.stat {
        for text in found.files.iter().filter_map(|file| file.text.as_ref()) {
            // Not `lines`: what ends a line may be all that is different.
            text.split_terminator('\n').try_for_each(|line| ui.line(line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
