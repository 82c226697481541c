//! What holds for a whole reading.

use std::cell::RefCell;

use serde_json::Value;

use super::input::{FromInput, Input};
use super::input_path::InputPath;
use super::invalid::{Checked, Invalid};
use crate::Result;
use crate::registry::{Parsed, Registry, Warning};

/// What becomes of keys that a model does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownKeys {
    /// What the model says; most models ignore them, as the reference does.
    #[default]
    ByModel,
    /// Refused with a suggestion: a person wrote the input, and a key nobody reads is a typo.
    Refuse,
}

/// What holds for a whole reading: the known types, and what to do with unknown keys.
#[derive(Debug)]
pub struct Context<'r> {
    registry: &'r Registry,
    unknown_keys: UnknownKeys,
    warnings: RefCell<Vec<Warning>>,
}

impl Context<'static> {
    /// Knows the built-in types.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Registry::builtin())
    }
}

impl Default for Context<'static> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'r> Context<'r> {
    /// Knows the types of `registry`.
    #[must_use]
    pub fn with(registry: &'r Registry) -> Self {
        Self { registry, unknown_keys: UnknownKeys::ByModel, warnings: RefCell::default() }
    }

    /// Says what becomes of unknown keys.
    #[must_use]
    pub fn unknown_keys(mut self, unknown_keys: UnknownKeys) -> Self {
        self.unknown_keys = unknown_keys;
        self
    }

    /// Reads a model and forgets its warnings.
    ///
    /// # Errors
    ///
    /// As [`read`](super::read).
    pub fn read<T: FromInput>(&self, value: &Value) -> Result<T> {
        self.check(value, T::from_input).map_err(Invalid::into_error)
    }

    /// Reads a model, and hands out what there is to warn about.
    ///
    /// # Errors
    ///
    /// As [`read`](super::read).
    pub fn parse<T: FromInput>(&self, value: &Value) -> Result<Parsed<T>> {
        let value = self.read(value)?;
        Ok(Parsed { value, warnings: self.warnings.take() })
    }

    /// Reads with `reader` and keeps the structure of what is wrong.
    ///
    /// # Errors
    ///
    /// Whatever `reader` says.
    pub fn check<T>(
        &self,
        value: &Value,
        reader: impl FnOnce(Input<'_>) -> Checked<T>,
    ) -> Checked<T> {
        reader(Input { value, place: &InputPath::Top, context: self })
    }

    pub(super) fn registry(&self) -> &'r Registry {
        self.registry
    }

    pub(super) fn note(&self, warning: Warning) {
        self.warnings.borrow_mut().push(warning);
    }

    pub(super) fn refuses_unknown_keys(&self) -> bool {
        self.unknown_keys == UnknownKeys::Refuse
    }

    /// Hands out the warnings of everything read so far.
    pub fn take_warnings(&self) -> Vec<Warning> {
        self.warnings.take()
    }
}
