//! `bastide kill`

use std::process::ExitCode;

use bastide::{ProcessId, Result};
use serde_json::json;

use crate::args::values::parse_signal;
use crate::clients::clients;
use crate::ui::Ui;

/// Send a signal to a process
///
/// KILL goes to everything descended from the command, any other signal to its process group.
#[derive(Debug, clap::Args)]
pub(crate) struct KillArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The process, as `bastide ps` names it
    #[arg(value_name = "PID")]
    process: u64,

    /// The signal
    #[arg(value_name = "SIGNAL", default_value = "TERM", value_parser = parse_signal)]
    signal: i32,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: KillArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    session.signal(ProcessId(args.process), args.signal).await?;
    if args.json {
        ui.json(&json!({ "id": session.id(), "process": args.process, "signal": args.signal }))?;
    }
    Ok(ExitCode::SUCCESS)
}
