//! Reads one line of a vectors file.

use serde_json::Value;

/// A recorded case.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) function: String,
    pub(crate) input: Value,
    pub(crate) expected: Expected,
}

/// What the reference answered.
#[derive(Debug)]
pub(crate) enum Expected {
    Output(Value),
    Error(Value),
}

impl Line {
    /// Reads a line, or says why it cannot be read.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value = serde_json::from_slice(bytes);
        // The reference's text may hold halves of surrogate pairs, which ours cannot.
        let value = value.or_else(|error| match without_lone_surrogates(bytes) {
            Some(bytes) => serde_json::from_slice(&bytes),
            None => Err(error),
        });
        let value: Value = value.map_err(|error| error.to_string())?;
        let Value::Object(mut object) = value else {
            return Err("the line is not an object".to_owned());
        };
        let mut text = |key: &str| match object.remove(key) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(format!("`{key}` is not text")),
        };
        let (id, function) = (text("id")?, text("fn")?);
        let input = object.remove("input").ok_or("`input` is missing")?;
        let expected = match (object.remove("output"), object.remove("error")) {
            (Some(output), None) => Expected::Output(output),
            (None, Some(error)) => Expected::Error(error),
            _ => return Err("exactly one of `output` and `error` must be there".to_owned()),
        };
        Ok(Self { id, function, input, expected })
    }
}

/// The JSON with every half of a surrogate pair replaced, if there are any.
fn without_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let escape = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(escape).ok()?, 16).ok()
    };
    let mut replaced = Vec::with_capacity(json.len());
    let mut found = false;
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        let (length, is_lone) = match (byte, unit(at)) {
            (b'\\', Some(0xd800..=0xdbff)) => match unit(at + 6) {
                Some(0xdc00..=0xdfff) => (12, false),
                _ => (6, true),
            },
            (b'\\', Some(0xdc00..=0xdfff)) => (6, true),
            (b'\\', _) => (2, false),
            _ => (1, false),
        };
        let kept = json.get(at..json.len().min(at + length)).unwrap_or_default();
        replaced.extend_from_slice(if is_lone { b"\\ufffd" } else { kept });
        found |= is_lone;
        at += length;
    }
    found.then_some(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_lines_without_exactly_one_answer() {
        let head = r#"{"id":"a/1","fn":"f","input":{}"#;
        assert!(Line::parse(format!("{head},\"output\":null}}").as_bytes()).is_ok());
        assert!(Line::parse(format!("{head}}}").as_bytes()).is_err());
        assert!(Line::parse(format!("{head},\"output\":1,\"error\":{{}}}}").as_bytes()).is_err());
        assert!(Line::parse(b"").is_err() && Line::parse(b"\xff").is_err());
    }

    #[test]
    fn halves_of_surrogate_pairs_do_not_make_a_line_unreadable() {
        let line =
            br#"{"id":"a/1","fn":"f","input":"\udcff \ud83d\ude00 \\udcff \ud83d","output":null}"#;
        let line = Line::parse(line).unwrap();
        assert_eq!(line.input, "\u{fffd} \u{1f600} \\udcff \u{fffd}");
    }
}
