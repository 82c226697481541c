//! `bastide redo`

use std::process::ExitCode;

use bastide::Result;

use super::undo::{object, show};
use crate::clients::clients;
use crate::ui::Ui;

/// Take the last undo of a session back
///
/// A command or a checkpoint after an undo leaves nothing to redo.
#[derive(Debug, clap::Args)]
pub(crate) struct RedoArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) async fn run(ui: &mut Ui, args: RedoArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let done = session.journal().redo().await?;
    match args.json {
        true => ui.json(&object(&done, true))?,
        false => show(ui, &done)?,
    }
    Ok(ExitCode::SUCCESS)
}
