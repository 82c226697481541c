//! `bastide ls`

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide::{Result, SessionInfo, SessionName};
use serde_json::{Value, json};

use crate::clients::clients;
use crate::ui::{Table, Ui};

/// List sessions
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Print an array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) async fn run(ui: &mut Ui, args: LsArgs) -> Result<ExitCode> {
    let client = clients()?;
    let sessions = client.list().await?;
    if args.json {
        ui.json(&sessions.iter().map(object).collect())?;
    } else {
        let mut table = Table::new(&["ID", "STATE", "BACKEND", "CREATED", "ROOT", "NAME"]);
        for session in &sessions {
            table.row([
                session.id.to_string(),
                session.status.as_str().to_owned(),
                session.backend.clone(),
                made(session),
                session.root.clone(),
                session.name.as_ref().map(ToString::to_string).unwrap_or_default(),
            ]);
        }
        ui.table(&table)?;
        for trouble in sessions.iter().filter_map(|session| session.trouble.as_ref()) {
            ui.note(trouble);
        }
    }
    client.flush().await;
    Ok(ExitCode::SUCCESS)
}

/// When a session was made, if that is known.
fn made(session: &SessionInfo) -> String {
    match session.created_at_ms {
        0 => "?".to_owned(),
        at => ago(UNIX_EPOCH + Duration::from_millis(at)),
    }
}

/// Everything that is known about a session.
pub(super) fn object(session: &SessionInfo) -> Value {
    json!({
        "id": session.id,
        "name": session.name.as_ref().map(SessionName::as_str),
        "state": session.status.as_str(),
        "backend": session.backend,
        "root": session.root,
        "guest": { "pid": session.guest_pid },
        "receipt": session.receipt,
        "created_at_ms": session.created_at_ms,
        "tied_to_owner": session.tied_to_owner,
        "end": session.end,
        "lease": session.lease.as_ref().map(super::lease::object),
        "trouble": session.trouble,
    })
}

/// How long ago something was, roughly.
pub(super) fn ago(then: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(then).unwrap_or_default().as_secs();
    let units = [(86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length);
    match unit.map(|(length, name)| (seconds / length, name)) {
        Some((1, name)) => format!("1 {name} ago"),
        Some((count, name)) => format!("{count} {name}s ago"),
        None => "now".to_owned(),
    }
}
