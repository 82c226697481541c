//! Text that must not show up in logs.

use std::fmt;
use std::ops::Deref;

use serde_json::Value;

use crate::Result;
use crate::lax::{Checked, Dump, FromInput, Input};

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
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

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
