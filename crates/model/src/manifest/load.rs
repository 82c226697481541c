//! Manifests out of files.

use indexmap::IndexMap;

use super::Manifest;
use super::walk::{check_rel_path, coerce_rel_path};
use crate::document::{Document, Format};
use crate::entry::Entry;
use crate::lax::PathSegment;
use crate::posix_path::PosixPath;
use crate::registry::{Parsed, Registry};
use crate::{Error, Result};

impl Manifest {
    /// Reads a manifest that a person wrote; `name` is how errors call the file.
    ///
    /// Beyond what reading JSON checks, keys that nobody reads are refused, and so are paths that
    /// leave the workspace.
    ///
    /// ```
    /// use bastide_model::document::Format;
    /// use bastide_model::{Manifest, Registry};
    ///
    /// let text = "[entries.'../etc']\ntype = 'dir'\n";
    /// let error = Manifest::load("town.toml", text, Format::Toml, Registry::builtin()).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "town.toml:1:10: entries.\"../etc\": manifest path must not escape root: ../etc",
    /// );
    /// ```
    ///
    /// # Errors
    ///
    /// Everything that is wrong, each with its line and column.
    pub fn load(
        name: &str,
        text: &str,
        format: Format,
        registry: &Registry,
    ) -> Result<Parsed<Self>> {
        Self::of_document(&Document::parse(name, text, format)?, registry)
    }

    /// Reads a manifest out of a document that was parsed already; see [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn of_document(document: &Document<'_>, registry: &Registry) -> Result<Parsed<Self>> {
        let parsed = document.read::<Self>(registry)?;
        let mut path = vec![PathSegment::Key("entries".to_owned())];
        match bad_path(&parsed.value.entries, &PosixPath::default(), &mut path) {
            Some(error) => Err(document.document_error(&path, error)),
            None => Ok(parsed),
        }
    }

    /// Reads a manifest that a person wrote as JSON; see [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn from_json(name: &str, text: &str) -> Result<Parsed<Self>> {
        Self::load(name, text, Format::Json, Registry::builtin())
    }

    /// Reads a manifest that a person wrote as YAML; see [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn from_yaml(name: &str, text: &str) -> Result<Parsed<Self>> {
        Self::load(name, text, Format::Yaml, Registry::builtin())
    }

    /// Reads a manifest that a person wrote as TOML; see [`load`](Self::load).
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn from_toml(name: &str, text: &str) -> Result<Parsed<Self>> {
        Self::load(name, text, Format::Toml, Registry::builtin())
    }
}

/// The first path that is wrong; `steps` then leads to it.
fn bad_path(
    entries: &IndexMap<String, Entry>,
    folder: &PosixPath,
    steps: &mut Vec<PathSegment>,
) -> Option<Error> {
    for (key, entry) in entries {
        steps.push(PathSegment::Key(key.clone()));
        let path = match coerce_rel_path(key) {
            Ok(path) => folder.join(&path),
            Err(error) => return Some(error),
        };
        if let Err(error) = check_rel_path(&path) {
            return Some(error);
        }
        if let Some(children) = entry.children() {
            steps.push(PathSegment::Key("children".to_owned()));
            if let Some(error) = bad_path(children, &path, steps) {
                return Some(error);
            }
            steps.pop();
        }
        steps.pop();
    }
    None
}
