//! Makes what is never the same twice the same: ids, paths, times.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::LiveBackend;
use crate::vectors::{decode_base64, members};

/// Texts longer than this compare by length and digest.
const WHOLE: usize = 2000;

/// Operations the reference tells of. Ours tell of more.
const REPORTED: [&str; 10] = [
    "start",
    "stop",
    "shutdown",
    "exec",
    "read",
    "write",
    "running",
    "resolve_exposed_port",
    "persist_workspace",
    "hydrate_workspace",
];

/// What an error of the reference's client for containers says about the commands by which it found out. Ours runs none.
const OF_COMMANDS: [&str; 9] = [
    "command",
    "stdout",
    "stderr",
    "stdout_bytes",
    "exit_code",
    "existence_probe_exit_code",
    "existence_probe_stdout_bytes",
    "existence_probe_stderr",
    "resolved_path",
];

/// Errors that are about a path, whoever found out.
const ABOUT_PATHS: [&str; 4] = [
    "WorkspaceArchiveReadError",
    "WorkspaceArchiveWriteError",
    "WorkspaceReadNotFoundError",
    "InvalidManifestPathError",
];

/// What has a name of its own in one outcome.
pub(super) struct Names {
    names: Vec<(String, &'static str)>,
    is_container: bool,
}

impl Names {
    pub(super) fn of(answer: &Value, line: &Value, tmp: &Path, side: &LiveBackend) -> Self {
        let mut names = Vec::new();
        let mut name = |text: &str, name| {
            if !text.is_empty() && text != "/" {
                names.push((text.to_owned(), name));
            }
        };
        // What is longer comes first: a root may hold the id.
        for root in [&answer["root"], &line["manifest"]["root"]] {
            let root = root.as_str().unwrap_or_default().trim_end_matches('/');
            let slashes = root.len() - root.trim_start_matches('/').len();
            name(&root[slashes.saturating_sub(1)..], "<ROOT>");
        }
        let session = answer["session"].as_str().unwrap_or_default();
        let simple = session.replace('-', "");
        if simple.len() == 32 {
            let parts = [&simple[..8], &simple[8..12], &simple[12..16], &simple[16..20]];
            name(&format!("{}-{}", parts.join("-"), &simple[20..]), "<ID>");
            name(&simple, "<ID>");
        }
        name(&tmp.to_string_lossy(), "<TMP>");
        Self { names, is_container: *side != LiveBackend::Local }
    }

    /// What came of a step, so that it can be compared.
    pub(super) fn call(&self, mut call: Value, step: &Value) -> Value {
        let events = call["events"].as_array().cloned().unwrap_or_default();
        let is_reported = |event: &Value| REPORTED.iter().any(|op| event["op"] == *op);
        let events = events.into_iter().filter(is_reported);
        let mut spans = Vec::new();
        let mut events = events.map(|event| tidy(event, &mut spans)).collect::<Vec<_>>();
        if step.get("from").is_some() {
            events.iter_mut().for_each(without_padding);
        }
        call["events"] = events.into();
        // Which number a process has is chance.
        if step.get("process").is_none()
            && let Some(id) = call.pointer_mut("/error/context/session_id")
        {
            *id = "<...>".into();
        }
        self.tidy_error(&mut call);
        // Calls that were made together.
        let together = call.get_mut("result").and_then(Value::as_array_mut);
        for each in together.into_iter().flatten() {
            if each.get("error").is_some() {
                self.tidy_error(each);
            }
        }
        self.value(call)
    }

    fn tidy_error(&self, call: &mut Value) {
        if let Some(object) = call["error"].as_object_mut() {
            *object = comparable(object);
            if self.is_container {
                without_commands(object);
            }
        }
    }

    /// A value without what is one side's own.
    pub(super) fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => self.text(&text).into(),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => self.object(fields),
            other => other,
        }
    }

    fn object(&self, fields: Map<String, Value>) -> Value {
        let bytes = |value: &Value| {
            let encoded =
                value["b64"].as_str().filter(|_| value.as_object().is_some_and(|o| o.len() == 1));
            encoded.and_then(|encoded| decode_base64(encoded).ok())
        };
        if fields.len() == 1
            && let Some(archive) = fields.get("tar").and_then(bytes)
        {
            return self.value(listed(&archive));
        }
        let fields = Value::Object(fields);
        if let Some(content) = bytes(&fields) {
            return self.text(&String::from_utf8_lossy(&content)).into();
        }
        let Value::Object(mut fields) = fields else { return Value::Null };
        // Of an archive, whose padding and times are each archiver's own.
        if let Some(print @ Value::String(_)) = fields.get_mut("snapshot_fingerprint") {
            *print = "<...>".into();
        }
        fields.into_iter().map(|(key, value)| (self.text(&key), self.value(value))).collect()
    }

    fn text(&self, text: &str) -> String {
        let named =
            self.names.iter().fold(text.to_owned(), |text, (own, name)| text.replace(own, name));
        let named = without_chance(&without_staging(&named), "/tmp/sandbox-git-<ID>-");
        let named = without_chance(&named, " port 1 after ");
        let named = without_chance(&named, "PTY session not found: ");
        let lines = named.split('\n').map(|line| {
            match ["Chunk ID: ", "Wall time: ", "Process running with session ID "]
                .iter()
                .find(|start| line.starts_with(*start))
            {
                Some(start) => format!("{start}<...>"),
                None => line.to_owned(),
            }
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        match text.len() > WHOLE {
            true => {
                let digest = hex::encode(Sha256::digest(&text));
                format!("{} bytes, {}", text.len(), &digest[..16])
            }
            false => text,
        }
    }
}

/// The name of a file that a patch is written to before it is renamed has chance in it.
fn without_staging(text: &str) -> String {
    const START: &str = "/.apply_patch-";
    match text.split_once(START) {
        Some((before, after)) => {
            let rest = after.split_once(".tmp").map_or("", |(_, rest)| rest);
            format!("{before}{START}<...>.tmp{rest}")
        }
        None => text.to_owned(),
    }
}

/// A name that ends with digits by chance, without those.
fn without_chance(text: &str, start: &str) -> String {
    let mut parts = text.split(start);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
        kept.push_str(start);
        kept.push_str("<...>");
        kept.push_str(rest);
    }
    kept
}

/// The members of an archive.
fn listed(archive: &[u8]) -> Value {
    let read = || {
        let mut file = tempfile::tempfile()?;
        file.write_all(archive)?;
        std::io::Seek::rewind(&mut file)?;
        members(file).map_err(|error| std::io::Error::other(error.to_string()))
    };
    match read() {
        Ok(Value::Array(members)) => {
            let mut members: Vec<_> = members.into_iter().map(plain_name).collect();
            members.sort_by_cached_key(|member| member["name"].as_str().map(str::to_owned));
            json!({"members": members})
        }
        Ok(other) => json!({"members": other}),
        Err(error) => json!({"unreadable": error.to_string()}),
    }
}

/// A member by its name alone: one archiver writes `./a` where the other writes `a`.
fn plain_name(mut member: Value) -> Value {
    let name = member["name"].as_str().and_then(|name| name.strip_prefix("./")).map(str::to_owned);
    if let Some(name) = name.filter(|name| !name.is_empty()) {
        member["name"] = name.into();
    }
    member
}

/// An event without what is never the same twice. Numbers go: ours count what only ours tell, too.
fn tidy(mut event: Value, spans: &mut Vec<String>) -> Value {
    let span = event["span_id"].as_str().unwrap_or_default().to_owned();
    let known = spans.iter().position(|known| *known == span);
    let number = known.unwrap_or_else(|| {
        spans.push(span);
        spans.len() - 1
    });
    if let Some(fields) = event.as_object_mut() {
        for own in ["event_id", "ts", "session_id", "duration_ms", "seq"] {
            fields.shift_remove(own);
        }
        fields.insert("span_id".to_owned(), number.into());
        if is_of_python(fields.get("error_type")) {
            fields.insert("error_type".to_owned(), "OSError".into());
            fields.shift_remove("error_message");
        }
        if fields.get("error_type").is_some_and(|class| class == "ExecNonZeroError") {
            fields.shift_remove("error_message");
        }
    }
    if event["op"] == "persist_workspace" {
        without_padding(&mut event);
    }
    event
}

/// How long an archive is, is each archiver's own.
fn without_padding(event: &mut Value) {
    if let Some(bytes) = event["data"].get_mut("bytes") {
        *bytes = "<bytes>".into();
    }
}

/// What of an error is compared: the words of the operating system and of Python's library are not.
fn comparable(error: &Map<String, Value>) -> Map<String, Value> {
    let mut error = error.clone();
    if is_of_python(error.get("type")) {
        return Map::from_iter([("type".to_owned(), "OSError".into())]);
    }
    match error.get("type").and_then(Value::as_str).unwrap_or_default() {
        "ValidationError" => {
            error.shift_remove("message");
            error.shift_remove("context");
        }
        "ValueError" | "TypeError" | "RuntimeError" => {
            error.shift_remove("context");
        }
        "ExecNonZeroError" => {
            error.shift_remove("message");
            if let Some(context) = error.get_mut("context").and_then(Value::as_object_mut) {
                context.shift_remove("stderr");
            }
        }
        _ => {}
    }
    error
}

fn without_commands(error: &mut Map<String, Value>) {
    let class = error.get("type").and_then(Value::as_str).unwrap_or_default();
    if ABOUT_PATHS.contains(&class)
        && let Some(context) = error.get_mut("context").and_then(Value::as_object_mut)
    {
        context.retain(|key, _| !OF_COMMANDS.contains(&key.as_str()));
    }
}

fn is_of_python(class: Option<&Value>) -> bool {
    let class = class.and_then(Value::as_str).unwrap_or_default();
    crate::vectors::PYTHON_WORDING.contains(&class)
}
