//! `bastide exec`

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Command, Error, ErrorKind, GuestPath, Result, Session};
use serde_json::json;

use crate::args::values::parse_time;
use crate::clients::clients;
use crate::foreground;
use crate::ui::Ui;

/// Run a command in a session
///
/// The command reads our standard input. Exit codes are those of `bastide run`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExecArgs {
    /// Let the command run by itself, and print its process id
    #[arg(short, long)]
    detach: bool,

    /// User to run it as
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,

    /// Folder to start it in, from the root or from the workspace
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// End the command, and everything it started, after this long (such as 500ms, 30s, 5m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    timeout: Option<Duration>,

    /// Print one object with everything the command said and how it ended
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    argv: Vec<OsString>,
}

pub(crate) async fn run(ui: &mut Ui, args: ExecArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let mut command = Command::new(args.argv.into_iter().map(OsString::into_vec));
    if let Some(user) = args.user {
        command = command.user(user);
    }
    if let Some(workdir) = &args.workdir {
        command = command.cwd(folder(&session, workdir)?);
    }
    if let Some(timeout) = args.timeout {
        command = command.timeout(timeout);
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
    if args.json {
        let (exit, report) = foreground::collect(&session, command).await?;
        ui.json(&report)?;
        return Ok(foreground::finish(ui, &exit));
    }
    let exit = foreground::stream(ui, &session, command).await?;
    Ok(foreground::finish(ui, &exit))
}

/// A folder inside, as somebody types it.
fn folder(session: &Session, text: &str) -> Result<GuestPath> {
    let parsed = if text.starts_with('/') {
        text.parse()
    } else {
        let relative = text.trim_start_matches("./").trim_end_matches('/');
        match relative {
            "" | "." => Ok(session.root().clone()),
            relative => session.root().join(relative),
        }
    };
    parsed.map_err(|error| {
        let message = format!("cannot start in {text:?}: {error}");
        Error::new(ErrorKind::InvalidInput, message)
    })
}
