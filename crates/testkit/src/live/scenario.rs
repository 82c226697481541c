//! Scenarios: files of JSON lines in `data/live`.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::LiveBackend;

/// What is done, in order, in a session of its own.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) id: String,
    /// What happens on the host before, in the scenario's folder: a line for the shell.
    pub(super) host: Option<String>,
    fields: Map<String, Value>,
}

/// Lists what is in the workspace, where no host sees it.
const LISTING: &str = "find . -mindepth 1 \\( -type d -printf '%p/ %m\\n' -o -type l -printf '%p -> %l\\n' \
                       -o -printf '%p %y %m %n\\n' \\) | LC_ALL=C sort; \
                       find . -type f -exec sha256sum {} + | LC_ALL=C sort";

/// What this process is, to whoever writes scenarios and rules.
pub(super) fn own_name() -> &'static str {
    if rustix::process::geteuid().is_root() { "root" } else { "user" }
}

/// Reads the scenarios for a backend, and for whoever this process is: `as` says that one is about what `root` or a `user`
/// may do.
pub(super) fn read(backend: &str) -> io::Result<Vec<Scenario>> {
    let own = own_name();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/live");
    let mut files: Vec<_> = fs::read_dir(&folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let area = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for (number, line) in fs::read_to_string(&file)?.lines().enumerate() {
            let at = || format!("{}:{}", file.display(), number + 1);
            let fields: Map<String, Value> = serde_json::from_str(line)
                .map_err(|error| io::Error::other(format!("{}: {error}", at())))?;
            let Some(id) = fields.get("id").and_then(Value::as_str) else {
                return Err(io::Error::other(format!("{}: there is no `id`", at())));
            };
            let id = format!("{area}/{id}");
            let host = fields.get("host").and_then(Value::as_str).map(str::to_owned);
            let is_for = |key: &str, value: &str| fields.get(key).is_none_or(|only| only == value);
            if is_for("only", backend) && is_for("as", own) {
                scenarios.push(Scenario { id, host, fields });
            }
        }
    }
    let mut ids: Vec<&str> = scenarios.iter().map(|scenario| scenario.id.as_str()).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(io::Error::other(format!("two scenarios are called `{}`", pair[0]))),
        None => Ok(scenarios),
    }
}

impl Scenario {
    /// One that is in no file.
    pub(super) fn made(id: String, fields: Map<String, Value>) -> Self {
        Self { id, host: None, fields }
    }

    /// The calls it makes: what the session itself is made by, then its own.
    pub(super) fn operations(&self) -> Vec<&str> {
        let mut operations = vec!["open"];
        let steps = self.fields.get("steps").and_then(Value::as_array);
        let named = steps.into_iter().flatten();
        operations.extend(named.map(|step| step["op"].as_str().unwrap_or_default()));
        operations
    }

    /// What it is there for, as far as that can be told from outside: its file, with a slash, and the calls it makes.
    pub(super) fn tries(&self) -> Vec<&str> {
        let mut tries = self.operations();
        tries.extend(self.id.split_inclusive('/').next());
        tries
    }

    /// What a driver is told, with the scenario's folder in place of `<TMP>` and the workspace in
    /// place of `<ROOT>`.
    pub(super) fn line(&self, side: &LiveBackend, tmp: &Path) -> Value {
        let tmp = tmp.to_string_lossy();
        let mut fields = self.fields.clone();
        fields.insert("tmp".to_owned(), tmp.as_ref().into());
        let manifest = fields.entry("manifest").or_insert_with(|| json!({}));
        let has_root = manifest.get("root").is_some();
        let is_default = self.fields.get("default_root") == Some(&json!(true));
        if *side == LiveBackend::Local && !has_root && !is_default {
            manifest["root"] = "<ROOT>".into();
        }
        if matches!(side, LiveBackend::Docker { .. })
            && let Some(steps) = fields.get_mut("steps").and_then(Value::as_array_mut)
        {
            steps.push(json!({"op": "exec", "command": [LISTING]}));
        }
        let root = match side {
            LiveBackend::Local => format!("{tmp}/ws"),
            LiveBackend::Docker { .. } => "/workspace".to_owned(),
        };
        filled(Value::Object(fields), &[("<ROOT>", &root), ("<TMP>", &tmp)])
    }
}

fn filled(value: Value, names: &[(&str, &str)]) -> Value {
    match value {
        Value::String(text) => {
            names.iter().fold(text, |text, (name, path)| text.replace(name, path)).into()
        }
        Value::Array(items) => items.into_iter().map(|item| filled(item, names)).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            let fields = fields.map(|(key, value)| {
                let key = names.iter().fold(key, |key, (name, path)| key.replace(name, path));
                (key, filled(value, names))
            });
            Value::Object(fields.collect())
        }
        other => other,
    }
}
