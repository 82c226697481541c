//! A value on its way into a model.

use serde_json::Value;

use super::context::Context;
use super::fields::Fields;
use super::input_path::InputPath;
use super::invalid::{Checked, Invalid};
use super::number;
use crate::python::type_name;
use crate::registry::{Registry, Warning};
use crate::spelling::did_you_mean;
use crate::{Error, ErrorClass, ErrorKind, FieldError};

/// Deeper inputs are refused: every level costs stack, and no real manifest comes near.
const MAX_DEPTH: usize = 256;

/// A type that can be read out of a JSON value.
pub trait FromInput: Sized {
    /// Reads the value, or says everything that is wrong with it.
    ///
    /// # Errors
    ///
    /// [`Invalid`] says which of the three ways of going wrong it was.
    fn from_input(input: Input<'_>) -> Checked<Self>;
}

/// A value to read, its place, and the context of the reading.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub(super) value: &'a Value,
    pub(super) place: &'a InputPath<'a>,
    pub(super) context: &'a Context<'a>,
}

impl<'a> Input<'a> {
    /// The value itself.
    #[must_use]
    pub fn value(self) -> &'a Value {
        self.value
    }

    /// The known types.
    #[must_use]
    pub fn registry(self) -> &'a Registry {
        self.context.registry()
    }

    /// The name the reference's language has for the type of this value, such as `NoneType`.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        type_name(self.value)
    }

    /// Whether a person wrote the input, who is told more than the reference's words.
    pub(crate) fn is_from_person(self) -> bool {
        self.context.refuses_unknown_keys()
    }

    /// Notes something the caller should hear about although the value is accepted.
    pub fn warn(self, message: impl Into<String>) {
        let warning = Warning { path: self.place.path(), message: message.into() };
        self.context.note(warning);
    }

    /// One field error, here.
    pub fn field_error(self, tag: &str, message: impl Into<String>) -> Invalid {
        Invalid::Fields(vec![self.line(tag, message)])
    }

    pub(super) fn line(self, tag: &str, message: impl Into<String>) -> FieldError {
        FieldError {
            loc: self.place.loc(),
            path: self.place.path(),
            tag: tag.to_owned(),
            message: message.into(),
        }
    }

    /// A rule's refusal of this value; in the reference, `ValueError`.
    pub fn value_error(self, message: impl Into<String>) -> Invalid {
        Invalid::Refused { path: self.place.path(), message: message.into() }
    }

    /// Ends the reading; in the reference, `TypeError`.
    pub fn type_error(self, message: impl Into<String>) -> Invalid {
        self.raise(Error::new(ErrorKind::InvalidInput, message).with_class(ErrorClass::TypeError))
    }

    /// The reference's `TypeError` about a value of a wrong type; a person is told by a field error
    /// with `tag`, together with everything else that is wrong.
    pub(crate) fn wrong_type(self, tag: &str, message: String) -> Invalid {
        if self.is_from_person() {
            self.field_error(tag, message)
        } else {
            self.type_error(message)
        }
    }

    /// Tells a person that the word under `key` is none of `known`; `None` if a program sent it, who
    /// is told by the reference's words.
    pub(crate) fn unknown_word<'w>(
        self,
        key: &str,
        word: &str,
        known: impl Iterator<Item = &'w str> + Clone,
    ) -> Option<Invalid> {
        if !self.is_from_person() {
            return None;
        }
        let message = match did_you_mean(word, known.clone()) {
            Some(meant) => format!("unknown type `{word}`; did you mean `{meant}`?"),
            None => {
                let known: Vec<&str> = known.collect();
                format!("unknown type `{word}`; known types are {}", known.join(", "))
            }
        };
        let place = InputPath::Key(self.place, key);
        Some(Input { place: &place, ..self }.field_error("unknown_type", message))
    }

    /// The reference's `ValueError` about an object whose `type` is not a word.
    pub(crate) fn without_type(self, message: &str) -> Invalid {
        if self.is_from_person() {
            self.field_error("union_tag_not_found", message)
        } else {
            self.value_error(message)
        }
    }

    /// Ends the reading with an error of its own.
    pub fn raise(self, error: Error) -> Invalid {
        Invalid::Raised { path: self.place.path(), error }
    }

    /// Opens an object as the fields of `model`.
    ///
    /// # Errors
    ///
    /// A field error if the value is not an object.
    pub fn fields(self, model: &str) -> Checked<Fields<'a>> {
        self.open(|| {
            let message = format!("Input should be a valid dictionary or instance of {model}");
            self.field_error("model_type", message)
        })
    }

    /// Opens an object as the fields of a plain data class of the reference, which words its
    /// complaint differently.
    ///
    /// # Errors
    ///
    /// A field error if the value is not an object.
    pub fn data_fields(self, class: &str) -> Checked<Fields<'a>> {
        self.open(|| {
            let message = format!("Input should be a dictionary or an instance of {class}");
            self.field_error("dataclass_type", message)
        })
    }

    fn open(self, complaint: impl FnOnce() -> Invalid) -> Checked<Fields<'a>> {
        if self.place.depth() > MAX_DEPTH {
            let message = format!("input is nested more than {MAX_DEPTH} levels deep");
            return Err(self.raise(Error::new(ErrorKind::LimitExceeded, message)));
        }
        self.value.as_object().map(|map| Fields::new(self, map)).ok_or_else(complaint)
    }

    /// Reads a whole number.
    ///
    /// # Errors
    ///
    /// A field error if the value is none and cannot be taken for one.
    pub fn int(self) -> Checked<i128> {
        number::int(self)
    }
}
