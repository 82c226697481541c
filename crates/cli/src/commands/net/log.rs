//! `bastide net log`

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bastide::events::{AuditReader, egress_notes};
use bastide::{ErrorKind, Result, SessionId};
use serde_json::Value;

use super::super::events::find;
use crate::clients::clients;
use crate::config;
use crate::ui::{Table, Ui};

/// How often somebody who follows looks again.
const AGAIN: Duration = Duration::from_millis(250);

/// Print what a network let out and what it refused, also after the session's end
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Go on as things happen
    #[arg(long)]
    follow: bool,

    /// Only what was refused
    #[arg(long)]
    denied: bool,

    /// Print every decision as a line of JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(ui: &mut Ui, args: &LogArgs) -> Result<ExitCode> {
    let home = config::home()?;
    let id = session(&home, &args.id)?;
    let mut printed = 0;
    loop {
        let all = decisions(&home, &id)?;
        let new = all.get(printed..).unwrap_or_default();
        let shown: Vec<_> = new.iter().filter(|note| !args.denied || is_denied(note)).collect();
        if args.json {
            shown.iter().try_for_each(|note| ui.json(note))?;
        } else {
            let mut table = Table::new(&["DECISION", "WHY", "PROTOCOL", "PLACE", "REQUEST"]);
            for note in shown {
                table.row(row(note));
            }
            ui.rows(&table, printed == 0)?;
        }
        printed = printed.max(all.len());
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// One that is there, or of which something is on record.
pub(super) fn session(home: &Path, prefix: &str) -> Result<SessionId> {
    match clients()?.find(prefix) {
        Err(error) if error.kind() == ErrorKind::NotFound => find(home, prefix),
        found => found,
    }
}

/// Everything that was decided, oldest first: what is in the audit log, and what is not there yet.
pub(super) fn decisions(home: &Path, id: &SessionId) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    match AuditReader::open(home, id) {
        Ok(mut reader) => loop {
            let records = reader.more()?;
            if records.is_empty() {
                break;
            }
            let own = records.into_iter().filter(|record| record.text("kind") == Some("egress"));
            all.extend(own.filter_map(|mut record| record.fields.remove("data")));
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let noted = std::fs::read_to_string(egress_notes(home, id)).unwrap_or_default();
    all.extend(noted.lines().filter_map(|line| serde_json::from_str(line).ok()));
    Ok(all)
}

pub(super) fn text<'a>(note: &'a Value, key: &str) -> &'a str {
    note.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn is_denied(note: &Value) -> bool {
    text(note, "decision") == "deny"
}

fn row(note: &Value) -> [String; 5] {
    let port = note.get("port").and_then(Value::as_u64).unwrap_or_default();
    // Why something is refused is a word of its own; how something came about that was allowed is said here alone.
    let detail = match text(note, "detail") {
        "" => String::new(),
        _ if is_denied(note) => String::new(),
        detail => format!("({detail})"),
    };
    let request: Vec<_> = [text(note, "method"), text(note, "path"), detail.as_str()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    [
        text(note, "decision").to_owned(),
        text(note, "why").to_owned(),
        text(note, "protocol").to_owned(),
        format!("{}:{port}", text(note, "host")),
        request.join(" "),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn says_what_came_from_the_package_cache() {
        let note = json!({"decision": "allow", "why": "rule", "protocol": "tls", "host": "a.org", "port": 443,
                          "method": "GET", "path": "/a.tgz", "detail": "from the package cache"});
        let [.., place, request] = row(&note);
        assert_eq!(
            (place.as_str(), request.as_str()),
            ("a.org:443", "GET /a.tgz (from the package cache)")
        );
        let denied = json!({"decision": "deny", "method": "GET", "path": "/", "detail": "no rule"});
        let [.., request] = row(&denied);
        assert_eq!(request, "GET /");
    }
}
