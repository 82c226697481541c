//! `bastide ps`

use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use bastide::{ProcessInfo, Result};
use serde_json::{Value, json};

use super::ls::ago;
use super::stats::{seconds, size};
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// List the processes of a session
#[derive(Debug, clap::Args)]
pub(crate) struct PsArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: PsArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let processes = session.processes().await?;
    if args.json {
        ui.json(&processes.iter().map(object).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["PID", "STATE", "STARTED", "OUTPUT", "CPU", "MEMORY", "COMMAND"]);
    for process in &processes {
        table.row([
            process.id.to_string(),
            state(process),
            ago(process.started),
            process.output.to_string(),
            process.usage.map_or_else(String::new, |usage| seconds(&usage)),
            process.usage.map_or_else(String::new, |usage| size(usage.peak_memory)),
            process.argv.join(" "),
        ]);
        for (_, command) in &process.children {
            let mut row: [String; 7] = Default::default();
            row[6] = format!("  {command}");
            table.row(row);
        }
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn state(process: &ProcessInfo) -> String {
    match &process.exit {
        None => "running".to_owned(),
        Some(exit) => format!("{} ({})", exit.reason.as_str(), exit.code),
    }
}

fn object(process: &ProcessInfo) -> Value {
    let started = process.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let children: Vec<_> = process
        .children
        .iter()
        .map(|(pid, command)| json!({ "pid": pid, "command": command }))
        .collect();
    json!({
        "process": process.id.0,
        "pid": process.pid,
        "argv": process.argv,
        "state": if process.exit.is_none() { "running" } else { "ended" },
        "reason": process.exit.as_ref().map(|exit| exit.reason.as_str()),
        "exit_code": process.exit.as_ref().map(|exit| exit.code),
        "started_at_ms": u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        "output_bytes": process.output,
        "terminal": process.terminal,
        "children": children,
        "usage": process.usage.map(|usage| usage.to_json()),
    })
}
