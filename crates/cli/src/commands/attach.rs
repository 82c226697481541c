//! `bastide attach`

use std::process::ExitCode;

use bastide::{ProcessId, Result};

use crate::clients::clients;
use crate::foreground::{EndNotes, Interrupts, NetworkErrorScanner};
use crate::stdin::Stdin;
use crate::ui::Ui;
use crate::{foreground, terminal};

/// Listen to a process, and write to it
///
/// Shows what the process said from the beginning, or from an offset, and what it says until it ends. Its
/// exit code becomes ours. An interrupt, or Ctrl-] on a terminal, lets go of the process and leaves it
/// running.
#[derive(Debug, clap::Args)]
pub(crate) struct AttachArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// The process, as `bastide ps` names it
    #[arg(value_name = "PID")]
    process: u64,

    /// How many bytes of its output to leave out
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,

    /// Print one object with everything it said and how it ended
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: AttachArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let id = ProcessId(args.process);
    let known = session.processes().await?.into_iter().find(|process| process.id == id);
    let mut process = session.attach(id, args.from).await?;
    if args.json {
        return match foreground::listen(&session, process).await? {
            Some((exit, report)) => {
                ui.json(&report)?;
                Ok(foreground::finish(ui, &exit))
            }
            None => Ok(ExitCode::SUCCESS),
        };
    }
    if known.is_some_and(|known| known.terminal && known.exit.is_none()) && terminal::is_there() {
        let mut network_errors = NetworkErrorScanner::default();
        let returned = terminal::attach(ui, &mut process, true, &mut network_errors).await?;
        let notes = EndNotes::default().of(&session);
        return Ok(foreground::finish_attached(ui, &returned, &notes, &network_errors));
    }
    let mut interrupts = Interrupts::listen()?;
    let writer = process.writer();
    // The end of our input is not the end of the process's: somebody else may come and write more.
    let mut stdin = Stdin::open()?;
    let typing = tokio::spawn(async move {
        while let Some(chunk) = stdin.next().await {
            if writer.write(chunk).await.is_err() {
                return;
            }
        }
    });
    let ended = tokio::select! {
        exit = foreground::follow(ui, &mut process) => exit.map(Some),
        _ = interrupts.next() => Ok(None),
    };
    typing.abort();
    match ended? {
        Some(exit) => Ok(foreground::finish(ui, &exit)),
        None => Ok(ExitCode::SUCCESS),
    }
}
