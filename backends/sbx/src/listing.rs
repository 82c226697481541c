//! What `sbx` answers in JSON. Anything may stand before it: a daemon that starts says so first.

use bastide::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

use crate::program::Sbx;

/// How long a list may take.
const ANSWER: Duration = Duration::from_secs(30);

/// One sandbox of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// Its name.
    pub name: String,
    /// The agent it was made for.
    #[serde(default)]
    pub agent: String,
    /// `running` or `stopped`.
    #[serde(default)]
    pub status: String,
    /// The folders of the host in it, the workspace first.
    #[serde(default)]
    pub workspaces: Vec<String>,
}

impl SandboxInfo {
    /// Whether it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status == "running"
    }
}

impl Sbx {
    /// Every sandbox of the machine. One that is not listed may still be there: a daemon that lost its
    /// engine lists none.
    ///
    /// # Errors
    ///
    /// If it does not answer, or not in JSON.
    pub async fn list(&self) -> Result<Vec<SandboxInfo>> {
        let output = self.check_call(&["ls", "--json"], ANSWER).await?;
        let answer = json(&output.stdout).ok_or_else(|| no_json("sbx ls --json"))?;
        let list = match answer {
            Value::Object(mut fields) => fields.remove("sandboxes").unwrap_or(Value::Null),
            list => list,
        };
        match list {
            // Go writes an empty list so.
            Value::Null => Ok(Vec::new()),
            list => serde_json::from_value(list).map_err(|error| {
                let message = format!("`sbx ls --json` answers in another shape: {error}");
                Error::new(ErrorKind::Unsupported, message)
            }),
        }
    }

    /// The sandbox of this name, if it is listed.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<SandboxInfo>> {
        Ok(self.list().await?.into_iter().find(|sandbox| sandbox.name == name))
    }
}

/// The JSON in what was said: from the first line on that begins like it.
pub(crate) fn json(output: &[u8]) -> Option<Value> {
    let text = String::from_utf8_lossy(output);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with(['{', '['])
            && let Some(Ok(value)) =
                serde_json::Deserializer::from_str(text.get(at..)?).into_iter().next()
        {
            return Some(value);
        }
        at += line.len();
    }
    None
}

pub(crate) fn no_json(call: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("`{call}` does not answer in JSON"))
        .with_hint("`sbx version` says which release it is; update it")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_behind_what_a_daemon_says() {
        for text in
            ["{\"a\": 1}", "Starting daemon\r\n[not] json\n  {\"a\": 1}\r\n", "x\n{\n\"a\":1}\n"]
        {
            assert_eq!(json(text.as_bytes()), Some(json!({"a": 1})), "{text}");
        }
        assert_eq!(json(b"No sandboxes found.\n"), None);
    }
}
