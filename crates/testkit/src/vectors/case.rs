//! What a handler is given: the input of one case and a scratch folder.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bastide::Backend;
use bastide_model::{Error, ErrorKind, Result};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// How the scratch folder is spelled in recorded cases.
pub(crate) const PLACEHOLDER: &str = "<TMP>";

/// Answers the cases of one function.
pub type Handler = fn(&Case<'_>) -> Result<Value>;

/// One case, as its handler sees it.
#[derive(Debug)]
pub struct Case<'a> {
    /// Everything the function saw, with `<TMP>` replaced by the scratch folder.
    pub input: &'a Value,
    /// A folder of this case's own.
    pub scratch: &'a Scratch,
    /// Where sessions run, if there is a place.
    pub backend: Option<&'a Arc<dyn Backend>>,
}

impl<'a> Case<'a> {
    /// The value under `key`; a missing key is `null`, as in the recorded cases.
    #[must_use]
    pub fn get(&self, key: &str) -> &'a Value {
        self.input.get(key).unwrap_or(&Value::Null)
    }

    /// The text under `key`.
    ///
    /// # Errors
    /// The case does not hold text there.
    pub fn text(&self, key: &str) -> Result<&'a str> {
        self.get(key).as_str().ok_or_else(|| malformed(key, "text"))
    }

    /// The text under `key`, or `None` for `null` and a missing key.
    ///
    /// # Errors
    /// The case holds something else there.
    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            Value::Null => Ok(None),
            _ => self.text(key).map(Some),
        }
    }

    /// The flag under `key`, or `default` where there is none.
    ///
    /// # Errors
    /// The case holds something else there.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            Value::Null => Ok(default),
            value => value.as_bool().ok_or_else(|| malformed(key, "a flag")),
        }
    }

    /// The whole number under `key`.
    ///
    /// # Errors
    /// The case does not hold a number of 64 bits there.
    pub fn integer(&self, key: &str) -> Result<i64> {
        self.get(key).as_i64().ok_or_else(|| malformed(key, "a whole number"))
    }

    /// The list under `key`; `null` and a missing key are the empty list.
    ///
    /// # Errors
    /// The case holds something else there.
    pub fn list(&self, key: &str) -> Result<&'a [Value]> {
        match self.get(key) {
            Value::Null => Ok(&[]),
            value => Ok(value.as_array().ok_or_else(|| malformed(key, "a list"))?),
        }
    }

    /// The texts of the list under `key`; `null` and a missing key are the empty list.
    ///
    /// # Errors
    /// The case holds something else there.
    pub fn texts(&self, key: &str) -> Result<Vec<&'a str>> {
        let text = |value: &'a Value| value.as_str().ok_or_else(|| malformed(key, "texts"));
        self.list(key)?.iter().map(text).collect()
    }

    /// The object under `key`.
    ///
    /// # Errors
    /// The case does not hold an object there.
    pub fn object(&self, key: &str) -> Result<&'a Map<String, Value>> {
        self.get(key).as_object().ok_or_else(|| malformed(key, "an object"))
    }

    /// The bytes under `key`, which the case holds as base64.
    ///
    /// # Errors
    /// The case does not hold base64 there.
    pub fn bytes(&self, key: &str) -> Result<Vec<u8>> {
        decode_base64(self.text(key)?)
    }
}

/// Bytes from the base64 of a case.
pub(crate) fn decode_base64(text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text).map_err(|_| malformed("base64", "base64"))
}

/// Bytes as the base64 of a case.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A case whose input is not what its function takes; never an answer the reference would give.
pub(crate) fn malformed(key: &str, expected: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the case does not hold {expected} under `{key}`"))
}

/// A folder of one case's own, made when it is first asked for and removed with the case.
///
/// Its path is absolute, free of symlinks and free of characters a shell would treat specially,
/// because recorded outputs quote paths below it.
#[derive(Debug, Default)]
pub struct Scratch {
    folder: OnceCell<(TempDir, PathBuf)>,
}

impl Scratch {
    /// The folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn path(&self) -> Result<&Path> {
        if self.folder.get().is_none() {
            let made = Self::make().map_err(|error| {
                Error::new(ErrorKind::Io, format!("no scratch folder: {error}")).with_source(error)
            })?;
            // Nobody else can have set it: the cell is not shared between threads.
            self.folder.set(made).unwrap_or_default();
        }
        match self.folder.get() {
            Some((_, path)) => Ok(path),
            None => Err(Error::new(ErrorKind::Internal, "the scratch folder vanished")),
        }
    }

    /// The path, where the folder was made.
    pub(crate) fn made(&self) -> Option<&Path> {
        self.folder.get().map(|(_, path)| path.as_path())
    }

    fn make() -> std::io::Result<(TempDir, PathBuf)> {
        let parent = std::env::temp_dir().canonicalize()?;
        let parent = if is_shell_plain(&parent) { parent } else { PathBuf::from("/tmp") };
        let folder = tempfile::Builder::new().prefix("bastide-vectors-").tempdir_in(parent)?;
        let path = folder.path().canonicalize()?;
        Ok((folder, path))
    }
}

fn is_shell_plain(path: &Path) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-_".contains(c);
    path.to_str().is_some_and(|text| text.chars().all(plain))
}
