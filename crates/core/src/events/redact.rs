//! Taking secrets out of what is said.

use bastide_model::events::Event;
use serde_json::{Map, Value};

/// Shorter values are words, not secrets: taking them out would garble everything.
const SHORTEST: usize = 4;

/// A value to redact, and its name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// What appears instead of the value.
    pub name: String,
    /// The value.
    pub value: String,
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Replaces secrets by their names, wherever they are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Redactor {
    /// The longest value first, so that no part of one survives the removal of another.
    secrets: Vec<Secret>,
}

impl Redactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut secrets: Vec<Secret> =
            secrets.into_iter().filter(|secret| secret.value.len() >= SHORTEST).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.value.len()));
        secrets.dedup();
        Self { secrets }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// The names of the secrets that occur in `data`.
    pub(crate) fn used(&self, data: &Map<String, Value>) -> Vec<&str> {
        let used = self.secrets.iter().filter(|secret| map_holds(data, &secret.value));
        used.map(|secret| secret.name.as_str()).collect()
    }

    /// Takes the secrets out of an event, out of what a command wrote too.
    pub(crate) fn event(&self, event: &mut Event) {
        if self.is_empty() {
            return;
        }
        self.map(&mut event.data);
        let Some(finish) = &mut event.finish else { return };
        let texts = [&mut finish.error_message, &mut finish.stdout, &mut finish.stderr];
        texts.into_iter().flatten().for_each(|text| self.text(text));
        for bytes in [&mut finish.stdout_bytes, &mut finish.stderr_bytes].into_iter().flatten() {
            for secret in &self.secrets {
                *bytes = replaced(bytes, secret);
            }
        }
    }

    pub(crate) fn map(&self, map: &mut Map<String, Value>) {
        map.values_mut().for_each(|value| self.value(value));
        let is_said = |secret: &Secret| map.keys().any(|key| key.contains(&secret.value));
        if self.secrets.iter().any(is_said) {
            *map = std::mem::take(map)
                .into_iter()
                .map(|(mut key, value)| {
                    self.text(&mut key);
                    (key, value)
                })
                .collect();
        }
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(map) => self.map(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    pub(crate) fn text(&self, text: &mut String) {
        for secret in &self.secrets {
            if text.contains(&secret.value) {
                *text = text.replace(&secret.value, &shown(secret));
            }
        }
    }
}

fn shown(secret: &Secret) -> String {
    format!("<secret:{}>", secret.name)
}

fn map_holds(map: &Map<String, Value>, text: &str) -> bool {
    map.iter().any(|(key, value)| key.contains(text) || holds(value, text))
}

fn holds(value: &Value, text: &str) -> bool {
    match value {
        Value::String(value) => value.contains(text),
        Value::Array(items) => items.iter().any(|item| holds(item, text)),
        Value::Object(map) => map_holds(map, text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn replaced(bytes: &[u8], secret: &Secret) -> Vec<u8> {
    let (value, shown) = (secret.value.as_bytes(), shown(secret));
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(value.len()).position(|window| window == value) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(shown.as_bytes());
        rest = &rest[at + value.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use bastide_model::events::{EventTime, Finish};
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn leaves_no_secret_anywhere() {
        let secret = |name: &str, value: &str| Secret { name: name.into(), value: value.into() };
        let redactor = Redactor::new([
            secret("short", "abcd"),
            secret("long", "abcdefgh"),
            secret("word", "a"),
        ]);
        let mut event = Event {
            version: 1,
            event_id: Uuid::nil(),
            ts: EventTime::from_unix_micros(0),
            session_id: Uuid::nil(),
            seq: 1,
            op: "exec",
            span_id: String::new(),
            parent_span_id: None,
            trace_id: None,
            data: json!({"command": ["echo abcdefgh", {"abcd": "xabcdx"}], "n": 1})
                .as_object()
                .cloned()
                .unwrap(),
            finish: Some(Finish {
                error_message: Some("failed: abcdefgh".to_owned()),
                stdout_bytes: Some(b"\xffabcdefghabcd\xff".to_vec()),
                stderr: Some("abcd".to_owned()),
                ..Finish::default()
            }),
        };
        assert_eq!(redactor.used(&event.data), ["long", "short"]);
        redactor.event(&mut event);
        assert_eq!(
            event.data["command"],
            json!(["echo <secret:long>", {"<secret:short>": "x<secret:short>x"}])
        );
        let finish = event.finish.unwrap();
        assert_eq!(finish.error_message.unwrap(), "failed: <secret:long>");
        assert_eq!(finish.stdout_bytes.unwrap(), b"\xff<secret:long><secret:short>\xff");
        assert_eq!(finish.stderr.unwrap(), "<secret:short>");
    }
}
