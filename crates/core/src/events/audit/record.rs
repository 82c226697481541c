//! One record: a line of JSON that ends with a hash over itself and everything before it.

use std::borrow::Cow;

use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::{Map, Value};

use crate::backend::SessionId;
use crate::lower_hex;

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

/// More than the hash at the end takes.
const ENDING: usize = 128;

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
        lower_hex::decode(text).map(Self)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
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

/// What a record says besides its place and its time: a comma, a name and a value for each, as they
/// are written. The names are ours: they need no escapes, and are not those of [`line`].
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(Vec<u8>);

impl Fields {
    pub(super) fn with(mut self, name: &str, value: impl Serialize) -> Self {
        self.put(name, value);
        self
    }

    pub(super) fn put(&mut self, name: &str, value: impl Serialize) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
        // Memory takes whatever it is given.
        drop(serde_json::to_writer(&mut self.0, &value));
    }

    /// Says the same as others.
    pub(super) fn join(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }
}

/// Writes a record as the one after `before`; with its line end.
pub(super) fn line(seq: u64, kind: &str, fields: &Fields, before: Digest) -> (Vec<u8>, Digest) {
    let begun = format!("{{\"seq\":{seq},\"at\":\"{}\",\"kind\":\"{kind}\"", super::time());
    let length = begun.len() + fields.0.len();
    // Whoever made it so long still has to be seen.
    let cut = (length + ENDING > MAX_LINE).then(|| Fields::default().with("cut", length));
    let mut text = Vec::with_capacity((length + ENDING).min(MAX_LINE));
    text.extend_from_slice(begun.as_bytes());
    text.extend_from_slice(&cut.as_ref().unwrap_or(fields).0);
    let hash = before.then(Digest::of(&text));
    text.extend_from_slice(BEFORE.as_bytes());
    text.extend_from_slice(hash.to_string().as_bytes());
    text.extend_from_slice(AFTER.as_bytes());
    text.push(b'\n');
    (text, hash)
}

/// Something somebody else may have said, within bounds.
pub(super) struct Bounded<'a> {
    said: BoundedValue<'a>,
    depth: usize,
}

enum BoundedValue<'a> {
    Value(&'a Value),
    /// One map, and another that counts where both have something to say.
    Maps(&'a Map<String, Value>, &'a Map<String, Value>),
}

impl<'a> Bounded<'a> {
    pub(super) fn value(value: &'a Value) -> Self {
        Self { said: BoundedValue::Value(value), depth: 0 }
    }

    pub(super) fn maps(map: &'a Map<String, Value>, overriding: &'a Map<String, Value>) -> Self {
        Self { said: BoundedValue::Maps(map, overriding), depth: 0 }
    }

    fn inside(&self, value: &'a Value) -> Self {
        Self { said: BoundedValue::Value(value), depth: self.depth + 1 }
    }
}

impl Serialize for Bounded<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let value = match self.said {
            BoundedValue::Maps(map, overriding) => {
                let own =
                    map.iter().map(|(key, value)| (key, overriding.get(key).unwrap_or(value)));
                let added = overriding.iter().filter(|(key, _)| !map.contains_key(*key));
                let pairs = own.chain(added).take(MAX_ITEMS);
                return to.collect_map(pairs.map(|(key, value)| (key, self.inside(value))));
            }
            BoundedValue::Value(value) => value,
        };
        match value {
            Value::String(text) => bounded_text(text).serialize(to),
            Value::Array(_) | Value::Object(_) if self.depth >= MAX_DEPTH => "…".serialize(to),
            Value::Array(items) => {
                let more = items.len() > MAX_ITEMS;
                let mut list = to.serialize_seq(None)?;
                for item in items.iter().take(MAX_ITEMS) {
                    list.serialize_element(&self.inside(item))?;
                }
                if more {
                    list.serialize_element(&format!("… ({} items)", items.len()))?;
                }
                list.end()
            }
            Value::Object(map) => {
                let pairs = map.iter().take(MAX_ITEMS);
                to.collect_map(pairs.map(|(key, value)| (key, self.inside(value))))
            }
            value => value.serialize(to),
        }
    }
}

/// Text somebody else may have said, within bounds.
pub(super) fn bounded_text(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    let end = text.floor_char_boundary(MAX_TEXT);
    format!("{}… ({} bytes)", &text[..end], text.len()).into()
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
            let fields = Fields::default().with("data", Bounded::value(&value));
            let (text, hash) = line(3, "op", &fields, Digest::first(&id));
            assert!(text.len() <= MAX_LINE, "{}", text.len());
            let parsed = Line::parse(text.trim_ascii_end()).unwrap();
            assert_eq!((parsed.seq, parsed.hash), (3, hash));
            assert_eq!(Digest::first(&id).then(parsed.body), hash);
        }
    }

    #[test]
    fn bounds_what_it_says() {
        let said = |value: &Value| serde_json::to_value(Bounded::value(value)).unwrap();
        let plain = json!({"n": 1.5, "list": [null, true, {"é": "\u{0}"}], "empty": {}});
        assert_eq!(said(&plain), plain);
        let long = said(&json!("é".repeat(3_000)));
        assert_eq!(long, json!(format!("{}… (6000 bytes)", "é".repeat(2_048))));
        let many = said(&json!(vec![1; 300]));
        assert_eq!(many.as_array().unwrap().len(), MAX_ITEMS + 1);
        assert_eq!(many[MAX_ITEMS], "… (300 items)");
        let deep = said(&(0..20).fold(json!(0), |value, _| json!([value])));
        assert_eq!(deep.to_string(), format!("{}\"…\"{}", "[".repeat(8), "]".repeat(8)));
    }

    #[test]
    fn says_what_is_said_besides() {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let (own, overriding) = (map(json!({"a": 1, "b": 2})), map(json!({"c": 3, "a": 4})));
        let text = serde_json::to_string(&Bounded::maps(&own, &overriding)).unwrap();
        assert_eq!(text, r#"{"a":4,"b":2,"c":3}"#);
    }
}
