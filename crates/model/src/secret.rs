//! Text that must not show up in logs.

use std::fmt;
use std::ops::Deref;

use serde_json::Value;

use crate::Result;
use crate::lax::{Checked, Dump, FromInput, Input};
use crate::text::shell_quote;

/// A key, token or password. It is written to JSON as it is, because the reference does; it is
/// never shown by `{:?}`, and it has no `Display`.
///
/// ```
/// use bastide_model::Secret;
///
/// let key = Secret::from("hunter2");
/// assert_eq!(format!("{key:?}"), "Secret(..)");
/// assert_eq!(&*key, "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl FromInput for Secret {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        String::from_input(input).map(Self)
    }
}

impl Dump for Secret {
    fn dump(&self) -> Result<Value> {
        self.0.dump()
    }
}

/// `text` with `REDACTED` in place of every secret, also where a shell would see it quoted.
///
/// ```
/// assert_eq!(bastide_model::redact_secrets("key=a b", ["a b"]), "key=REDACTED");
/// ```
pub fn redact_secrets<'a>(text: &str, secrets: impl IntoIterator<Item = &'a str>) -> String {
    let mut text = text.to_owned();
    for secret in secrets.into_iter().filter(|secret| !secret.is_empty()) {
        text = text.replace(secret, "REDACTED");
        let quoted = shell_quote(secret);
        if quoted != secret {
            text = text.replace(&quoted, "REDACTED");
        }
    }
    text
}
