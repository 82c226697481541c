//! `bastide run`

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Command, Result};

use crate::args::session::SessionArgs;
use crate::args::values::parse_time;
use crate::foreground;
use crate::ui::Ui;

/// Run a command in a new session, then remove the session
///
/// The command reads our standard input. Its exit code becomes the exit code of `bastide`; a command
/// killed by signal N exits with 128+N, as in a shell. 124 is a timeout, 125 a failure of Bastide itself,
/// 126 and 127 mean that the program could not be executed or was not found.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    session: SessionArgs,

    /// End the command, and everything it started, after this long (such as 500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Print one object with everything the command said and how it ended
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    argv: Vec<OsString>,
}

pub(crate) async fn run(ui: &mut Ui, args: RunArgs) -> Result<ExitCode> {
    let (_, session) = args.session.create(ui, true).await?;
    match args.verbose {
        true => ui.receipt(session.id().as_str(), session.receipt()),
        false => ui.unheld_limits(session.receipt()),
    }
    let mut command = Command::new(args.argv.into_iter().map(OsString::into_vec));
    if let Some(timeout) = args.timeout {
        command = command.timeout(timeout);
    }
    let ran = if args.json {
        foreground::collect(&session, command).await.map(|(exit, report)| (exit, Some(report)))
    } else {
        foreground::stream(ui, &session, command).await.map(|exit| (exit, None))
    };
    // Whatever became of the command, nothing of its session stays.
    let deleted = session.delete().await;
    let (exit, report) = ran?;
    deleted?;
    if let Some(report) = report {
        ui.json(&report)?;
    }
    Ok(foreground::finish(ui, &exit))
}
