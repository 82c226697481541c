//! The types of one sort of thing.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::raise;
use crate::lax::{Checked, Input, Invalid};
use crate::{Error, Result};

type Reader<T> = Arc<dyn Fn(Input<'_>) -> Checked<T> + Send + Sync>;

/// A built-in type: its word, the reference's name for it, and its reader.
pub(crate) type Builtin<T> = (&'static str, &'static str, fn(Input<'_>) -> Checked<T>);

/// The types of one sort of thing, by the word they carry under `type`.
pub(crate) struct Kinds<T> {
    known: BTreeMap<String, Kind<T>>,
}

struct Kind<T> {
    owner: String,
    read: Reader<T>,
}

impl<T: 'static> Kinds<T> {
    pub(crate) fn new(builtin: &[Builtin<T>]) -> Self {
        let kind = |(tag, owner, read): &Builtin<T>| {
            ((*tag).to_owned(), Kind { owner: (*owner).to_owned(), read: Arc::new(*read) })
        };
        Self { known: builtin.iter().map(kind).collect() }
    }

    /// Adds a type; `taken` words the complaint about the owner of a word that is not free.
    pub(crate) fn add(
        &mut self,
        tag: &str,
        owner: &str,
        read: impl Fn(Input<'_>) -> Checked<T> + Send + Sync + 'static,
        taken: impl FnOnce(&str) -> Error,
    ) -> Result<()> {
        if tag.is_empty() {
            let message = format!("{owner} must define a non-empty string default for `type`");
            return Err(raise::value_error(message));
        }
        if let Some(existing) = self.known.get(tag) {
            return Err(taken(&existing.owner));
        }
        self.known.insert(tag.to_owned(), Kind { owner: owner.to_owned(), read: Arc::new(read) });
        Ok(())
    }

    /// Whether there is a type with that word.
    pub(crate) fn has(&self, tag: &str) -> bool {
        self.known.contains_key(tag)
    }

    /// The words, sorted.
    pub(crate) fn words(&self) -> impl Iterator<Item = &str> + Clone {
        self.known.keys().map(String::as_str)
    }

    /// Reads a value of the type that `tag` stands for; `what` names the sort of thing where the
    /// word stands for none.
    pub(crate) fn read(&self, input: Input<'_>, tag: &str, what: &str) -> Checked<T> {
        match self.known.get(tag) {
            Some(kind) => (kind.read)(input),
            None => Err(self.unknown(input, tag, what)),
        }
    }

    fn unknown(&self, input: Input<'_>, tag: &str, what: &str) -> Invalid {
        if let Some(told) = input.unknown_word("type", tag, self.words()) {
            return told;
        }
        let known: Vec<&str> = self.words().collect();
        let known = if known.is_empty() { "<none>".to_owned() } else { known.join(", ") };
        input.value_error(format!("Unknown {what} type `{tag}`. Registered types: {known}"))
    }
}

impl<T> Clone for Kind<T> {
    fn clone(&self) -> Self {
        Self { owner: self.owner.clone(), read: Arc::clone(&self.read) }
    }
}

impl<T> Clone for Kinds<T> {
    fn clone(&self) -> Self {
        Self { known: self.known.clone() }
    }
}

impl<T> fmt::Debug for Kinds<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.known.iter().map(|(tag, kind)| (tag, &kind.owner))).finish()
    }
}
