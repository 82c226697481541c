//! One record: a line of JSON that ends with a hash over itself and everything before it.

use serde_json::{Map, Value};

use crate::backend::SessionId;
use crate::events::trace::hex;

/// The longest line of a log.
pub(super) const MAX_LINE: usize = 64 << 10;

/// The longest text in a record; longer ones are cut.
const MAX_TEXT: usize = 4 << 10;

/// The most items of a list in a record.
const MAX_ITEMS: usize = 256;

/// How deep a record goes.
const MAX_DEPTH: usize = 8;

/// What stands before the hash at the end of a line, and after it.
const BEFORE: &str = ",\"hash\":\"";
const AFTER: &str = "\"}";

/// A hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Digest(pub(super) [u8; 32]);

impl Digest {
    /// What the chain of a session starts from.
    pub(super) fn first(id: &SessionId) -> Self {
        Self(*blake3::hash(format!("bastide-audit/1 {id}").as_bytes()).as_bytes())
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash after this one, for a record with that body. The body goes in by its own hash, so that
    /// a proof needs the bodies of no other records.
    pub(super) fn then(self, body: Self) -> Self {
        Self::of(&[self.0, body.0].concat())
    }

    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 64 || !text.bytes().all(is_digit) {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// A line of a log, taken apart.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) seq: u64,
    /// The hash of what stands before the hash.
    pub(super) body: Digest,
    /// The hash it ends with.
    pub(super) hash: Digest,
    pub(super) fields: Map<String, Value>,
    /// As it was written.
    pub(super) text: String,
}

impl Line {
    /// Reads a line without its end; `None` if it is no record.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?;
        let (body, hash) = split(text)?;
        let Value::Object(fields) = serde_json::from_str(text).ok()? else { return None };
        let seq = fields.get("seq")?.as_u64()?;
        Some(Self { seq, body: Digest::of(body.as_bytes()), hash, fields, text: text.to_owned() })
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.fields.get(key).and_then(Value::as_str)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        self.fields.get(key).and_then(Value::as_u64)
    }
}

/// What is hashed of a line, and its hash.
pub(super) fn split(line: &str) -> Option<(&str, Digest)> {
    let rest = line.strip_suffix(AFTER)?;
    let at = rest.len().checked_sub(64)?;
    let (body, hash) = (rest.get(..at)?.strip_suffix(BEFORE)?, rest.get(at..)?);
    Some((body, Digest::from_hex(hash)?))
}

/// Writes a record as the one after `before`; with its line end.
pub(super) fn line(
    seq: u64,
    kind: &str,
    fields: Map<String, Value>,
    before: Digest,
) -> (String, Digest) {
    let mut text = encode(seq, kind, tame_map(fields, 0));
    if text.len() + 128 > MAX_LINE {
        // Whoever made it so long still has to be seen.
        let cut = Map::from_iter([("cut".to_owned(), Value::from(text.len()))]);
        text = encode(seq, kind, cut);
    }
    // The brace at the end makes room for the hash.
    text.pop();
    let hash = before.then(Digest::of(text.as_bytes()));
    text.push_str(&format!("{BEFORE}{hash}{AFTER}\n"));
    (text, hash)
}

fn encode(seq: u64, kind: &str, fields: Map<String, Value>) -> String {
    let mut record = Map::new();
    record.insert("seq".to_owned(), seq.into());
    record.insert("at".to_owned(), super::time().into());
    record.insert("kind".to_owned(), kind.into());
    record.extend(fields);
    record.shift_remove("hash");
    Value::Object(record).to_string()
}

/// Bounds everything somebody else may have said.
fn tame(value: Value, depth: usize) -> Value {
    match value {
        Value::String(text) if text.len() > MAX_TEXT => {
            let end = text.floor_char_boundary(MAX_TEXT);
            format!("{}… ({} bytes)", &text[..end], text.len()).into()
        }
        Value::Array(_) | Value::Object(_) if depth >= MAX_DEPTH => "…".into(),
        Value::Array(items) => {
            let count = items.len();
            let mut tamed: Vec<Value> =
                items.into_iter().take(MAX_ITEMS).map(|item| tame(item, depth + 1)).collect();
            if count > MAX_ITEMS {
                tamed.push(format!("… ({count} items)").into());
            }
            Value::Array(tamed)
        }
        Value::Object(map) => Value::Object(tame_map(map, depth + 1)),
        value => value,
    }
}

fn tame_map(map: Map<String, Value>, depth: usize) -> Map<String, Value> {
    let pairs = map.into_iter().take(MAX_ITEMS);
    pairs.map(|(key, value)| (key, tame(value, depth))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stays_within_its_bounds_and_can_be_read() {
        let id = SessionId::random();
        let deep = (0..50).fold(json!("x".repeat(10_000)), |value, _| json!([value, {"k": "é"}]));
        let long = json!({"command": vec!["y".repeat(9_000); 300], "hash": "mine", "seq": 7});
        for value in [deep, long, json!({"text": "\u{0}\n\u{1b}[2J\"}"})] {
            let fields = Map::from_iter([("data".to_owned(), value)]);
            let (text, hash) = line(3, "op", fields, Digest::first(&id));
            assert!(text.len() <= MAX_LINE, "{}", text.len());
            let parsed = Line::parse(text.trim_end().as_bytes()).unwrap();
            assert_eq!((parsed.seq, parsed.hash), (3, hash));
            assert_eq!(Digest::first(&id).then(parsed.body), hash);
        }
    }
}
