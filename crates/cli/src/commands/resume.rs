//! `bastide resume`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bastide::{Result, ResumeOptions};

use crate::args::mounts::MountArgs;
use crate::args::values::parse_time;
use crate::clients::clients;
use crate::ui::Ui;

/// Go on with a session that was stopped, or that ended
///
/// It has the files it had; where those are gone, what was saved last. One that runs is left alone.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Give up what changed since the session was last saved
    #[arg(long)]
    discard_changes: bool,

    /// Manifest the session was made with, whose mounts have keys
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,

    /// Wait this long for room, in turn, where the home limits how many sessions run
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    wait: Option<Duration>,

    /// Print an object with the id and the isolation receipt
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the isolation receipt on standard error
    #[arg(short, long)]
    verbose: bool,

    #[command(flatten)]
    mounts: MountArgs,
}

pub(crate) async fn run(ui: &mut Ui, args: ResumeArgs) -> Result<ExitCode> {
    let client = clients()?;
    let id = client.find(&args.id)?;
    let mut options = ResumeOptions::default();
    options.discard_changes = args.discard_changes;
    options.wait = args.wait;
    if let Some(path) = &args.manifest {
        let manifest = args.mounts.load(ui, path).await?;
        options.manifest = Some(args.mounts.acknowledged(manifest)?);
    }
    let shown = ui.progress("restoring");
    options.progress = shown.listener();
    let session = client.resume_with(&id, options).await?;
    drop(shown);
    ui.session(&session, args.json, args.verbose)?;
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}
