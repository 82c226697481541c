//! `bastide lease`

use std::process::ExitCode;
use std::time::Duration;

use bastide::{LeaseChange, LeaseStatus, Result};
use serde_json::{Value, json};

use crate::args::lease::{ExpiryArg, parse_lease};
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// Show or change when a running session ends by itself
///
/// Time runs out with nobody there. What is changed holds until the session ends: when it is resumed, the lease it
/// was created with begins anew.
#[derive(Debug, clap::Args)]
pub(crate) struct LeaseArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Time that is left from now on (such as 30m, 2h)
    #[arg(value_name = "TIME", value_parser = parse_lease)]
    ttl: Option<Duration>,

    /// Never shorten the time that is left
    #[arg(long, requires = "ttl")]
    at_least: bool,

    /// End it once nothing happened in it for this long
    #[arg(long, value_name = "TIME", value_parser = parse_lease)]
    idle: Option<Duration>,

    /// What its end by itself leaves: its files, or nothing
    #[arg(long, value_name = "END")]
    then: Option<ExpiryArg>,

    /// Forget the lease: the session lasts until it is stopped
    #[arg(long)]
    none: bool,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: LeaseArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.attach(&client.find(&args.id)?).await?;
    let mut change = LeaseChange::default();
    change.forget = args.none;
    (change.ttl, change.at_least, change.idle) = (args.ttl, args.at_least, args.idle);
    change.then = args.then.map(Into::into);
    let lease = match change == LeaseChange::default() {
        true => session.lease().status().await?,
        false => session.lease().change(change).await?,
    };
    if args.json {
        ui.json(&object(&lease))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["WHAT", "IS"]);
    rows(&lease).into_iter().for_each(|(what, is)| table.row([what.to_owned(), is]));
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// A lease, for people.
pub(super) fn rows(lease: &LeaseStatus) -> Vec<(&'static str, String)> {
    let time = |time: Option<Duration>| match time {
        Some(time) => format!("{:.1} s", time.as_secs_f64()),
        None => "no limit".to_owned(),
    };
    vec![
        ("time left", time(lease.remaining)),
        ("idle at most", time(lease.idle)),
        ("then", json!(lease.then).as_str().unwrap_or_default().to_owned()),
    ]
}

/// A lease, for programs.
pub(super) fn object(lease: &LeaseStatus) -> Value {
    let millis = |time: Option<Duration>| time.map(|time| time.as_millis());
    json!({
        "remaining_ms": millis(lease.remaining),
        "idle_ms": millis(lease.idle),
        "then": lease.then,
    })
}
