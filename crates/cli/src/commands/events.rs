//! `bastide events`

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use bastide::events::{AUDIT_FOLDER, AuditReader, AuditRecord};
use bastide::{Error, ErrorKind, Result, SessionId};
use serde_json::Value;

use crate::clients::clients;
use crate::config;
use crate::ui::{Table, Ui};

/// How often to look for more.
const AGAIN: Duration = Duration::from_millis(100);

/// The most of a command or path that is shown.
const WIDEST: usize = 60;

/// Show what happened in a session, also after its end
///
/// One line for each operation: when it began, what it was, how long it took, and what came of it.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    /// The session; all of them when left out
    #[arg(value_name = "ID")]
    id: Option<String>,

    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,

    /// Print every record as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Only these operations (can be repeated)
    #[arg(long = "op", value_name = "OP")]
    ops: Vec<String>,
}

pub(crate) async fn run(ui: &mut Ui, args: EventsArgs) -> Result<ExitCode> {
    let home = config::home()?;
    // Ends that nobody was there to put on record.
    clients()?.finish_deletions().await;
    let is_wanted = |record: &AuditRecord| {
        let is_mount = record.text("kind").filter(|kind| *kind == "mount");
        let op = record.text("op").or_else(|| record.text("state")).or(is_mount);
        args.ops.is_empty() || op.is_some_and(|op| args.ops.iter().any(|wanted| wanted == op))
    };
    let mut story = OperationRows::new(args.id.is_none());
    let mut readers = HashMap::new();
    let mut is_first = true;
    loop {
        let ids = match &args.id {
            Some(id) => vec![find(&home, id)?],
            None => logs(&home)?,
        };
        let mut found = Vec::new();
        for id in ids {
            let reader = match readers.entry(id.clone()) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    match AuditReader::open(&home, &id) {
                        Ok(reader) => entry.insert(reader),
                        // Somebody is just about to write the first record, or took the log away.
                        Err(error) if error.is_not_found() => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            loop {
                let more = reader.more()?;
                if more.is_empty() {
                    break;
                }
                found.extend(more.into_iter().map(|record| (id.clone(), record)));
            }
        }
        found.sort_by(|(_, one), (_, other)| one.text("at").cmp(&other.text("at")));
        found.retain(|(_, record)| is_wanted(record));
        if args.json {
            for (_, record) in &found {
                ui.json(&Value::Object(record.fields.clone()))?;
            }
        } else {
            let mut table = Table::new(story.titles());
            found.iter().for_each(|(id, record)| story.add(id, record, &mut table));
            if !args.follow {
                story.finish(&mut table);
            }
            ui.rows(&table, is_first)?;
        }
        is_first = false;
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The session whose name begins with `prefix`, among those that have a log.
pub(super) fn find(home: &std::path::Path, prefix: &str) -> Result<SessionId> {
    if let Ok(id) = prefix.parse() {
        return Ok(id);
    }
    if let Some(id) = bastide::session_named(home, prefix) {
        return Ok(id);
    }
    let all = logs(home)?;
    let mut found = all.iter().filter(|id| !prefix.is_empty() && id.as_str().starts_with(prefix));
    match (found.next(), found.next()) {
        (Some(id), None) => Ok(id.clone()),
        (Some(_), Some(_)) => {
            let message = format!("more than one session begins with {prefix:?}");
            Err(Error::new(ErrorKind::Conflict, message).with_hint("give more of its name"))
        }
        (None, _) => {
            let message = format!("nothing is on record about a session {prefix}");
            Err(Error::new(ErrorKind::NotFound, message))
        }
    }
}

/// The sessions that have a log, by name.
pub(super) fn logs(home: &std::path::Path) -> Result<Vec<SessionId>> {
    let entries = match std::fs::read_dir(home.join(AUDIT_FOLDER)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let message = format!("cannot list what is on record: {error}");
            return Err(Error::new(ErrorKind::Io, message));
        }
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut ids: Vec<SessionId> = names.filter_map(|name| name.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// Puts starts and ends together.
#[derive(Debug)]
struct OperationRows {
    shows_session: bool,
    /// Operations that started: when, and what they are about.
    open: HashMap<String, (String, SessionId, String, String)>,
}

impl OperationRows {
    fn new(shows_session: bool) -> Self {
        Self { shows_session, open: HashMap::new() }
    }

    fn titles(&self) -> &'static [&'static str] {
        match self.shows_session {
            true => &["TIME", "SESSION", "OPERATION", "TOOK", "RESULT", "WHAT"],
            false => &["TIME", "OPERATION", "TOOK", "RESULT", "WHAT"],
        }
    }

    fn add(&mut self, id: &SessionId, record: &AuditRecord, table: &mut Table) {
        let at = record.text("at").unwrap_or_default().to_owned();
        let data = record.fields.get("data").unwrap_or(&Value::Null);
        if let Some(state) = record.text("state") {
            self.row(table, (&at, id, state, "", &state_of(data), ""));
            return;
        }
        if record.text("kind") == Some("mount") {
            let change = data["op"].as_str().unwrap_or_default();
            let outcome = data["outcome"].as_str().unwrap_or_default();
            self.row(table, (&at, id, &format!("mount {change}"), "", outcome, &changed(data)));
            return;
        }
        let (Some(op), Some(span)) = (record.text("op"), record.text("span")) else { return };
        if record.text("phase") == Some("start") {
            let started = (at, id.clone(), op.to_owned(), about(data));
            self.open.insert(span.to_owned(), started);
            return;
        }
        let (at, what) = match self.open.remove(span) {
            Some((at, _, _, what)) => (at, what),
            None => (at, about(data)),
        };
        let took = record.fields.get("duration_ms").and_then(Value::as_f64).map(took);
        let result = result(record, data);
        self.row(table, (&at, id, op, &took.unwrap_or_default(), &result, &what));
    }

    /// Shows what has no end yet.
    fn finish(&mut self, table: &mut Table) {
        let mut open: Vec<_> = self.open.drain().map(|(_, started)| started).collect();
        open.sort();
        for (at, id, op, what) in &open {
            self.row(table, (at, id, op, "", "no end", what));
        }
    }

    fn row(&self, table: &mut Table, cells: (&str, &SessionId, &str, &str, &str, &str)) {
        let (at, id, op, took, result, what) = cells;
        // The day and the zone are in the records.
        let time = at.get(11..23).unwrap_or(at);
        let session = self.shows_session.then(|| id.as_str()[..8].to_owned());
        let rest = [op, took, result, what].map(str::to_owned);
        table.row([time.to_owned()].into_iter().chain(session).chain(rest));
    }
}

fn state_of(data: &Value) -> String {
    let mut parts = Vec::new();
    if data["late"] == true {
        parts.push("seen late".to_owned());
    }
    for key in ["reason", "why", "error"] {
        parts.extend(data[key].as_str().map(str::to_owned));
    }
    parts.extend(data["receipt"]["rung"].as_str().map(str::to_owned));
    parts.join(", ")
}

/// What a command changed in a store: the path as commands see it, and the new one of what was renamed.
fn changed(data: &Value) -> String {
    let text = |key: &str| data[key].as_str().unwrap_or_default();
    let path = format!("{}/{}", text("mount"), text("path"));
    match data["to"].as_str() {
        Some(to) => shortened(format!("{path} -> {}/{to}", text("mount"))),
        None => shortened(path),
    }
}

/// What an operation is about, in a few words.
fn about(data: &Value) -> String {
    let text = match &data["command"] {
        Value::Array(parts) => {
            let parts = parts.iter().filter_map(Value::as_str);
            parts.collect::<Vec<_>>().join(" ")
        }
        _ => {
            let keys = ["path", "source", "left", "pattern", "port", "process", "session_id"];
            let values = keys.iter().map(|key| &data[*key]).find(|value| !value.is_null());
            match values {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => String::new(),
            }
        }
    };
    shortened(text)
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(WIDEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn result(record: &AuditRecord, data: &Value) -> String {
    if let Some(error) = record.text("error_type") {
        let refused = if record.text("decision").is_some() { "refused: " } else { "" };
        return format!("{refused}{}", record.text("error_code").unwrap_or(error));
    }
    match &data["exit_code"] {
        Value::Null => "ok".to_owned(),
        code if data["late"] == true => format!("exit {code}, seen late"),
        code => format!("exit {code}"),
    }
}

/// A time for people.
fn took(milliseconds: f64) -> String {
    match milliseconds {
        short if short < 1.0 => format!("{:.0} µs", short * 1000.0),
        short if short < 10.0 => format!("{short:.1} ms"),
        middle if middle < 1000.0 => format!("{middle:.0} ms"),
        long if long < 60_000.0 => format!("{:.1} s", long / 1000.0),
        long => format!("{:.0} min", long / 60_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_changes_to_stores_by_the_paths_that_commands_see() {
        let mut change = serde_json::json!({"mount": "/workspace/data", "path": "d/a", "to": null});
        assert_eq!(changed(&change), "/workspace/data/d/a");
        change["to"] = "b".into();
        assert_eq!(changed(&change), "/workspace/data/d/a -> /workspace/data/b");
    }

    #[test]
    fn tells_times_as_people_do() {
        let cases = [
            (0.0123, "12 µs"),
            (3.12, "3.1 ms"),
            (250.4, "250 ms"),
            (1500.0, "1.5 s"),
            (180_000.0, "3 min"),
        ];
        for (milliseconds, want) in cases {
            assert_eq!(took(milliseconds), want);
        }
    }
}
