//! `bastide shell`

use std::process::ExitCode;

use bastide::{Command, Result};

use crate::clients::clients;
use crate::foreground::{EndNotes, NetworkErrorScanner, StreamOptions};
use crate::ui::Ui;
use crate::{foreground, terminal};

/// The best shell there is.
const SHELL: &str = "command -v bash >/dev/null && exec bash -l; exec sh -l";

/// Open a shell in a session
#[derive(Debug, clap::Args)]
pub(crate) struct ShellArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) async fn run(ui: &mut Ui, args: ShellArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let command = Command::shell(SHELL);
    if !terminal::is_there() {
        let command = command.stream_input();
        let streamed = foreground::stream(ui, &session, command, StreamOptions::OURS).await?;
        return Ok(EndNotes::default().finish_streamed(ui, &streamed));
    }
    let (rows, columns) = terminal::size();
    let mut process = session.spawn(command.terminal(rows, columns)).await?;
    let mut network_errors = NetworkErrorScanner::default();
    let returned = terminal::attach(ui, &mut process, false, &mut network_errors).await?;
    Ok(foreground::finish_attached(
        ui,
        &returned,
        &EndNotes::default().of(&session),
        &network_errors,
    ))
}
