//! `bastide exec`

use std::ffi::OsString;
use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

use crate::args::command::CommandArgs;
use crate::args::values::{PassedVariable, parse_variable};
use crate::clients::clients;
use crate::foreground::{self, NetworkErrorScanner};
use crate::ui::Ui;

/// Run a command in a session
///
/// With -i the command reads our standard input; without, it reads nothing. Exit codes are those of `bastide run`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// Environment variable to set; without a value, your own (can be repeated)
    #[arg(short, long = "env", value_name = "KEY[=VALUE]", value_parser = parse_variable)]
    envs: Vec<PassedVariable>,

    /// Let the command run by itself, and print its process id
    #[arg(short, long, conflicts_with = "interactive")]
    detach: bool,

    /// Print one object with everything the command said and how it ended
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    argv: Vec<OsString>,

    #[command(flatten)]
    command: CommandArgs,
}

pub(crate) async fn run(ui: &mut Ui, args: ExecArgs) -> Result<ExitCode> {
    args.command.check(args.json, args.detach)?;
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let notes = args.command.notes(&args.argv).of(&session);
    let mut command = args.command.command(&session, args.argv)?;
    for variable in args.envs {
        if let Some((key, value)) = variable.resolve() {
            command = command.env(key, value);
        }
    }
    if args.detach {
        let process = session.launch(command).await?;
        if args.json {
            ui.json(&json!({ "id": session.id(), "process": process.0 }))?;
        } else {
            ui.line(&process.to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let streams = args.command.streams();
    if args.json {
        let (exit, report) = foreground::collect(&session, command, streams).await?;
        ui.json(&report)?;
        return Ok(notes.finish(ui, &exit, &NetworkErrorScanner::default()));
    }
    let streamed = foreground::stream(ui, &session, command, streams).await?;
    Ok(notes.finish_streamed(ui, &streamed))
}
