//! `bastide create`

use std::process::ExitCode;

use bastide::Result;

use crate::args::session::SessionArgs;
use crate::ui::Ui;

/// Make a session that stays until it is removed, and print its id
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    session: SessionArgs,

    /// Print an object with the id and the isolation receipt
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: CreateArgs) -> Result<ExitCode> {
    let (client, session) = args.session.create(ui, false).await?;
    ui.session(&session, args.json, args.verbose)?;
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
