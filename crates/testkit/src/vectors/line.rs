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
        let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
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
}
