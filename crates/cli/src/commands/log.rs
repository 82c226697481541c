//! `bastide log`

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bastide::{ChangeSummary, Point, Result};
use serde_json::{Value, json};

use super::ls::ago;
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// List the points of a session: checkpoints, and with `--journal` every command
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) fn run(ui: &mut Ui, args: &LogArgs) -> Result<ExitCode> {
    let client = clients()?;
    let log = client.log(&client.find(&args.id)?)?;
    let numbered = log.points.iter().enumerate();
    if args.json {
        let points = numbered.map(|(index, point)| describe(point, index < log.applied));
        ui.json(&points.collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["POINT", "NAME", "WHEN", "STATE", "EXIT", "CHANGES", "COMMAND"]);
    for (index, point) in numbered {
        let state = match (point.aside, index < log.applied) {
            (true, _) => "aside",
            (_, false) => "undone",
            (_, true) => "",
        };
        table.row([
            point.number.to_string(),
            point.name.clone().unwrap_or_default(),
            ago(UNIX_EPOCH + Duration::from_millis(point.at_ms)),
            state.to_owned(),
            point.exit.map(|code| code.to_string()).unwrap_or_default(),
            changed(&point.changes),
            match point.label.is_empty() {
                true => point.kind.as_str().to_owned(),
                false => point.label.clone(),
            },
        ]);
    }
    ui.table(&table)?;
    if log.thinned > 0 {
        ui.note(&format!("points up to {} were removed to make room", log.thinned));
    }
    Ok(ExitCode::SUCCESS)
}

/// What changed, in a few letters.
pub(crate) fn changed(changes: &ChangeSummary) -> String {
    let some = [('+', changes.added), ('~', changes.changed), ('-', changes.removed)];
    let some = some.iter().filter(|(_, count)| *count > 0);
    some.map(|(mark, count)| format!("{mark}{count}")).collect::<Vec<_>>().join(" ")
}

/// Everything that is known about a point.
pub(crate) fn describe(point: &Point, is_applied: bool) -> Value {
    json!({
        "number": point.number,
        "name": point.name,
        "kind": point.kind.as_str(),
        "label": point.label,
        "at_ms": point.at_ms,
        "exit": point.exit,
        "before": point.before,
        "after": point.after,
        "changes": point.changes,
        "frozen_ms": u64::try_from(point.frozen.as_millis()).unwrap_or(u64::MAX),
        "mechanism": point.mechanism.as_str(),
        "applied": is_applied && !point.aside,
    })
}
