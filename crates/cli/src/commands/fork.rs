//! `bastide fork`

use std::process::ExitCode;

use bastide::Result;
use serde_json::json;

use crate::clients::clients;
use crate::ui::Ui;

/// Make sessions that begin with the files and the environment of another
///
/// Prints the id of each. Processes are not forked. `merge` takes over what is changed in a fork.
#[derive(Debug, clap::Args)]
pub(crate) struct ForkArgs {
    /// How many
    #[arg(short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,

    /// The point they begin with, rather than now
    #[arg(long, value_name = "POINT")]
    at: Option<String>,

    /// Print an array of ids
    #[arg(long)]
    pub(crate) json: bool,

    /// The session
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) async fn run(ui: &mut Ui, args: ForkArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let count = usize::try_from(args.count).unwrap_or(usize::MAX);
    let forks = client.fork(&session, count, args.at.as_deref()).await?;
    if args.json {
        ui.json(&json!(forks.iter().map(bastide::Session::id).collect::<Vec<_>>()))?;
    } else {
        forks.iter().try_for_each(|fork| ui.line(fork.id().as_str()))?;
    }
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
