//! `bastide inspect`

use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use bastide::egress::EgressStatus;
use bastide::{Mechanism, NetworkAccess, Result, SessionStatus};
use serde_json::{Value, json};

use super::lease::rows as lease_rows;
use super::ls::{ago, object};
use super::net::status_object;
use super::stats::{seconds, size};
use crate::clients::clients;
use crate::ui::{Table, Ui, message};

/// Show everything that is known about a session
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an object
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: InspectArgs) -> Result<ExitCode> {
    let client = clients()?;
    let session = client.inspect(&client.find(&args.id)?).await?;
    let has_policy =
        session.receipt.as_ref().is_some_and(|receipt| receipt.network == NetworkAccess::Policy);
    let egress = match has_policy && session.status == SessionStatus::Running {
        true => Some(client.of(&session.id)?.egress_status(&session.id).await),
        false => None,
    };
    let usage = match session.status {
        // Sessions of earlier versions do not tell, and one may end at this moment.
        SessionStatus::Running => client.usage(&session.id).await.ok(),
        _ => None,
    };
    if args.json {
        let mut object = object(&session);
        object["usage"] = json!(usage.map(|usage| usage.to_json()));
        if let (Some(egress), Value::Object(object)) = (&egress, &mut object) {
            object.insert("egress".to_owned(), egress_object(egress));
        }
        ui.json(&object)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["WHAT", "IS"]);
    let mut row = |what: &str, is: String| table.row([what.to_owned(), is]);
    row("id", session.id.to_string());
    if let Some(name) = &session.name {
        row("name", name.to_string());
    }
    row("state", session.status.as_str().to_owned());
    row("backend", session.backend.clone());
    row("root", session.root.clone());
    row("created", ago(UNIX_EPOCH + Duration::from_millis(session.created_at_ms)));
    if let Some(pid) = session.guest_pid {
        row("guest", format!("process {pid}"));
    }
    if let Some(end) = &session.end {
        row("ended", format!("{}: {}", end.reason, end.detail));
    }
    if let Some(lease) = &session.lease {
        lease_rows(lease).into_iter().for_each(|(what, is)| row(what, is));
    }
    if let Some(usage) = &usage {
        row("processors", seconds(usage));
        row("peak memory", size(usage.peak_memory));
        row("read", size(usage.read));
        row("written", size(usage.written));
        row("counted by", usage.source.as_str().to_owned());
    }
    if let Some(trouble) = &session.trouble {
        row("trouble", trouble.clone());
    }
    if let Some(receipt) = &session.receipt {
        row("rung", receipt.rung.as_str().to_owned());
        row("network", receipt.network.as_str().to_owned());
        row("user", receipt.user.clone());
        receipt.walls.iter().for_each(|wall| row("wall", wall.clone()));
        receipt.not_enforced.iter().for_each(|open| row("open", open.clone()));
        row("points", points(receipt.points));
    }
    match &egress {
        Some(Ok(egress)) => row("proxy", format!("process {}", egress.pid)),
        Some(Err(error)) => row("proxy", message(error).into_owned()),
        None => {}
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

/// How points are made, and why not otherwise.
fn points(mechanism: Mechanism) -> String {
    match mechanism {
        Mechanism::Store => "store (files that changed are read; layers would part the names of a file, and clones of \
                             all files take longer)"
            .to_owned(),
        other => other.as_str().to_owned(),
    }
}

/// What programs are told of the network; why nothing is known, where its proxy does not answer.
fn egress_object(egress: &Result<EgressStatus>) -> Value {
    match egress {
        Ok(egress) => {
            let whole = status_object(egress, &[]);
            let part = |key: &str| whole.get(key).cloned().unwrap_or_default();
            json!({
                "pid": part("pid"),
                "rules": part("rules"),
                "read_hosts": part("read_hosts"),
                "flows": part("flows"),
            })
        }
        Err(error) => json!({"error": message(error)}),
    }
}
