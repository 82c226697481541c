//! Which types of things a reading knows, and what reading something yields.
//!
//! The reference lets programs add types of their own. So do we, as a value: start from
//! [`Registry::builtin`], add to a copy, and read with it. Nothing global changes.

use std::sync::LazyLock;

use crate::lax::Step;

/// A value, and what there is to say about it although it was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed<T> {
    /// What was read.
    pub value: T,
    /// What the caller should tell somebody.
    pub warnings: Vec<Warning>,
}

/// Something odd in an input that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where in the input.
    pub path: Vec<Step>,
    /// What is odd.
    pub message: String,
}

/// Every type that a reading knows.
#[derive(Debug, Clone, Default)]
pub struct Registry {}

impl Registry {
    /// The types that come with Bastide.
    #[must_use]
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Registry> = LazyLock::new(Registry::default);
        &BUILTIN
    }
}
