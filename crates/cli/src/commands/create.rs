//! `bastide create`

use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

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
    let id = session.id().as_str();
    if args.verbose {
        ui.receipt(id, session.receipt());
    }
    if args.json {
        let root = session.root().as_str();
        ui.json(&json!({ "id": id, "root": root, "receipt": session.receipt() }))?;
    } else {
        ui.line(id)?;
    }
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
