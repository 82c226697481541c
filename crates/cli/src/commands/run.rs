//! `bastide run`

use std::ffi::OsString;
use std::process::ExitCode;

use bastide::{Condition, Result, Session};
use serde_json::Value;

use crate::args::command::CommandArgs;
use crate::args::session::SessionArgs;
use crate::foreground::{self, CommandEnd, NetworkErrorScanner};
use crate::ui::Ui;

/// Run a command in a new session, then remove the session
///
/// With -i the command reads our standard input; without, it reads nothing. Its exit code becomes the exit code of
/// `bastide`; a command killed by signal N exits with 128+N, as in a shell. 124 is a timeout, 125 a failure of Bastide
/// itself, 126 and 127 mean that the program could not be executed or was not found.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Print one object with everything the command said and how it ended
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    argv: Vec<OsString>,

    #[command(flatten)]
    command: CommandArgs,

    #[command(flatten)]
    session: SessionArgs,
}

/// How the command ended, and what of it is printed for a program.
struct RunOutcome {
    streamed: CommandEnd,
    report: Option<Value>,
}

pub(crate) async fn run(ui: &mut Ui, args: RunArgs) -> Result<ExitCode> {
    args.command.check(args.json, false)?;
    let (_, session) = args.session.create(ui, true, None).await?;
    match args.verbose {
        true => ui.receipt(session.id().as_str(), session.receipt()),
        false => ui.unheld_limits(session.receipt()),
    }
    let notes = args.command.notes(&args.argv).of(&session);
    let ran = match in_session(ui, &session, &args.command, args.argv, args.json).await {
        Err(error) => {
            let error = session.explain(error).await;
            // Nothing of it is left to be resumed.
            Err(match error.condition() {
                Some(Condition::SessionExpired(_)) => error.with_hint("give it more time"),
                _ => error,
            })
        }
        ran => ran,
    };
    // Whatever became of the command, nothing of its session stays.
    let deleted = session.delete().await;
    let RunOutcome { streamed, report } = ran?;
    deleted?;
    if let Some(report) = report {
        ui.json(&report)?;
    }
    Ok(notes.finish_streamed(ui, &streamed))
}

async fn in_session(
    ui: &mut Ui,
    session: &Session,
    args: &CommandArgs,
    argv: Vec<OsString>,
    json: bool,
) -> Result<RunOutcome> {
    let command = args.command(session, argv)?;
    if !json {
        let streamed = foreground::stream(ui, session, command, args.streams()).await?;
        return Ok(RunOutcome { streamed, report: None });
    }
    let (exit, report) = foreground::collect(session, command, args.streams()).await?;
    let streamed = CommandEnd::Ended(exit, NetworkErrorScanner::default());
    Ok(RunOutcome { streamed, report: Some(report) })
}
