//! Why an input cannot be read.

use std::fmt;

use serde_json::{Value, json};

use super::input_path::InputPath;
use crate::{Error, ErrorClass, ErrorKind, FieldError};

/// What reading one value yields.
pub type Checked<T> = std::result::Result<T, Invalid>;

/// One step from the top of an input to a value in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathSegment {
    /// Into an object.
    Key(String),
    /// Into an array.
    Index(usize),
}

impl fmt::Display for PathSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(key) => f.write_str(key),
            Self::Index(index) => write!(f, "{index}"),
        }
    }
}

impl From<&PathSegment> for Value {
    fn from(step: &PathSegment) -> Self {
        match step {
            PathSegment::Key(key) => Self::from(key.as_str()),
            PathSegment::Index(index) => Self::from(*index),
        }
    }
}

/// Why a value cannot be read.
#[derive(Debug)]
pub enum Invalid {
    /// These fields do not validate.
    Fields(Vec<FieldError>),
    /// A rule refused the value. Met inside a model, it becomes an error of the field that has the
    /// rule; at the top it is a plain `ValueError`.
    Refused {
        /// Which value.
        path: Vec<PathSegment>,
        /// What the rule says.
        message: String,
    },
    /// The reading ended at once, whatever else is wrong.
    Raised {
        /// Which value.
        path: Vec<PathSegment>,
        /// With what.
        error: Error,
    },
}

impl Invalid {
    /// Turns a refusal into an error of the field at `place`, as the reference does at the edge of
    /// every validator.
    pub(super) fn settle(self, place: &InputPath<'_>) -> Self {
        match self {
            Self::Refused { path, message } => Self::Fields(vec![FieldError {
                loc: place.loc(),
                path,
                tag: "value_error".to_owned(),
                message: format!("Value error, {message}"),
            }]),
            settled => settled,
        }
    }

    /// The error a caller of the reference would catch.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Fields(errors) => validation_error(errors),
            Self::Refused { message, .. } => {
                Error::new(ErrorKind::InvalidInput, message).with_class(ErrorClass::ValueError)
            }
            Self::Raised { error, .. } => error,
        }
    }
}

fn validation_error(errors: Vec<FieldError>) -> Error {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let listed: Vec<Value> = errors
        .iter()
        .map(|error| json!({"loc": error.loc, "type": error.tag, "msg": error.message}))
        .collect();
    Error::new(ErrorKind::InvalidInput, lines.join("\n"))
        .with_class(ErrorClass::ValidationError)
        .with_context("errors", listed)
        .with_field_errors(errors)
}
