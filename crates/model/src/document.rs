//! Files that people write: JSON, YAML or TOML, read into the same models, with errors that point at
//! the line.
//!
//! What a program sends as JSON is read by [`lax`](crate::lax) exactly as the reference reads it.
//! A file is read more strictly: a key that nobody reads is a typo, and so is a key that is there
//! twice.

mod errors;
mod json;
mod node;
mod toml;
mod yaml;

use serde_json::Value;

use crate::lax::{Context, FromInput, PathSegment, UnknownKeys};
use crate::registry::{Parsed, Registry};
use crate::{Error, Result};

use errors::DocumentErrors;
use node::DocumentNode;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML 1.2, one document.
    Yaml,
    /// TOML.
    Toml,
}

impl Format {
    /// The format that a file's name promises.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        let (_, extension) = name.rsplit_once('.')?;
        match extension.to_ascii_lowercase().as_str() {
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }
}

/// A file that was understood as far as its format goes.
///
/// ```
/// use bastide_model::document::{Document, Format};
/// use bastide_model::{Manifest, Registry};
///
/// let text = "entries:\n  notes.txt:\n    type: file\n    contents: hello\n";
/// let document = Document::parse("town.yaml", text, Format::Yaml)?;
/// let error = document.read::<Manifest>(Registry::builtin()).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "town.yaml:2:3: entries.\"notes.txt\": `content` is missing\n\
///      town.yaml:4:5: entries.\"notes.txt\": unknown key `contents`; did you mean `content`?",
/// );
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug)]
pub struct Document<'t> {
    name: &'t str,
    text: &'t str,
    root: DocumentNode,
    value: Value,
}

impl<'t> Document<'t> {
    /// Reads `text`; `name` is how errors call the file.
    ///
    /// # Errors
    ///
    /// If it is not in that format, has a key twice, or grows out of bounds when its aliases are
    /// followed.
    pub fn parse(name: &'t str, text: &'t str, format: Format) -> Result<Self> {
        let parsed = match format {
            Format::Json => json::parse(text),
            Format::Yaml => yaml::parse(text),
            Format::Toml => toml::parse(text),
        };
        let checked = parsed.and_then(|root| {
            let value = root.to_value()?;
            Ok((root, value))
        });
        match checked {
            Ok((root, value)) => Ok(Self { name, text, root, value }),
            Err(failure) => {
                let (line, column) = failure.position.line_and_column(text);
                let message = format!("{name}:{line}:{column}: {}", failure.message);
                Err(Error::new(failure.kind, message)
                    .with_context("file", name)
                    .with_context("line", line)
                    .with_context("column", column))
            }
        }
    }

    /// What the file says, as JSON.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Changes what the file says before it is read; errors about it still name the file's own lines.
    ///
    /// # Errors
    ///
    /// Those of `change`.
    pub fn edit(&mut self, change: impl FnOnce(&mut Value) -> Result<()>) -> Result<()> {
        change(&mut self.value)
    }

    /// Reads a model with the types of `registry`. Its warnings say where they are about.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, each with its line and column; in the context also under `errors`.
    pub fn read<T: FromInput>(&self, registry: &Registry) -> Result<Parsed<T>> {
        let context = Context::with(registry).unknown_keys(UnknownKeys::Refuse);
        match context.check(&self.value, T::from_input) {
            Ok(value) => {
                let mut warnings = context.take_warnings();
                for warning in &mut warnings {
                    warning.message = errors::line(self, &warning.path, &warning.message);
                }
                Ok(Parsed { value, warnings })
            }
            Err(invalid) => Err(DocumentErrors::about(self, invalid).into_error()),
        }
    }

    /// The line and the column, both from 1, where something is, or the nearest thing around it.
    #[must_use]
    pub fn locate(&self, path: &[PathSegment]) -> (usize, usize) {
        self.root.find(path).line_and_column(self.text)
    }

    /// The error that something at `path` is wrong.
    pub(crate) fn document_error(&self, path: &[PathSegment], error: Error) -> Error {
        DocumentErrors::raised(self, path, error).into_error()
    }
}
