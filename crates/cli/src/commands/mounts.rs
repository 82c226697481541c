//! `bastide mounts`

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bastide::{MountInfo, Result};
use serde_json::{Value, json};

use super::ls::ago;
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// List the mounts of a session, and which credentials commands can see
#[derive(Debug, clap::Args)]
pub(crate) struct MountsArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: MountsArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let mounts = session.mounts().await?;
    if args.json {
        ui.json(&mounts.iter().map(object).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let titles = [
        "PATH", "PROVIDER", "STRATEGY", "ACCESS", "STATE", "SINCE", "READS", "WRITES", "HITS",
        "EXPOSED",
    ];
    let mut table = Table::new(&titles);
    for mount in &mounts {
        let counted = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        let since = mount.since.map(|at| ago(UNIX_EPOCH + Duration::from_millis(at)));
        let access = if mount.read_only { "read-only" } else { "read+write" };
        let exposed = match mount.exposed.is_empty() {
            true => "nothing".to_owned(),
            // The program that mounts is root's.
            false => format!("{} (to root inside)", mount.exposed.join(", ")),
        };
        table.row([
            mount.path.clone(),
            mount.provider.clone(),
            mount.strategy.clone(),
            access.to_owned(),
            mount.state.clone(),
            since.unwrap_or_else(|| "-".to_owned()),
            counted(mount.reads),
            counted(mount.writes),
            counted(mount.cache_hits),
            exposed,
        ]);
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn object(mount: &MountInfo) -> Value {
    json!({
        "path": mount.path,
        "provider": mount.provider,
        "strategy": mount.strategy,
        "read_only": mount.read_only,
        "state": mount.state,
        "since": mount.since,
        "reads": mount.reads,
        "writes": mount.writes,
        "cache_hits": mount.cache_hits,
        "exposed": mount.exposed,
    })
}
