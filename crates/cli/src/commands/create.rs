//! `bastide create`

use std::process::ExitCode;

use bastide::{Result, SessionName};

use crate::args::session::SessionArgs;
use crate::args::values::parse_name;
use crate::ui::Ui;

/// Make a session that stays until it is removed, and print its id
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// Name of the session, to use wherever an id goes
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<SessionName>,

    /// Print an object with the id and the isolation receipt
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    session: SessionArgs,
}

pub(crate) async fn run(ui: &mut Ui, args: CreateArgs) -> Result<ExitCode> {
    let (client, session) = args.session.create(ui, false, args.name).await?;
    ui.session(&session, args.json, args.verbose)?;
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
