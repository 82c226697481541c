//! `bastide restore`

use std::process::ExitCode;

use bastide::{Error, ErrorKind, Result};

use super::undo::{object, show};
use crate::clients::clients;
use crate::ui::Ui;

/// Make a file or folder of a session what it was at a point
///
/// Everything else stays as it is. Processes are ended first. It can be undone.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// What to restore, and which point of `log` from
    #[arg(value_name = "PATH@POINT")]
    what: String,
}

pub(crate) async fn run(ui: &mut Ui, args: RestoreArgs) -> Result<ExitCode> {
    // A path may have an `@` in it, a point has none.
    let Some((path, point)) = args.what.rsplit_once('@') else {
        let message = format!("{:?} says no point", args.what);
        return Err(Error::new(ErrorKind::InvalidInput, message)
            .with_hint("write PATH@POINT, such as src/main.rs@green; `bastide log` lists points"));
    };
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let done = session.journal().restore_path(path, point).await?;
    match args.json {
        true => ui.json(&object(&done, true))?,
        false => show(ui, &done)?,
    }
    Ok(ExitCode::SUCCESS)
}
