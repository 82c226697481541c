//! The fields of one object, read one after the other.

use serde_json::{Map, Value};

use super::input::{FromInput, Input};
use super::input_path::InputPath;
use super::invalid::{Checked, Invalid};
use crate::spelling::did_you_mean;
use crate::{Error, ErrorKind, FieldError};

/// Reads the fields of one object and remembers everything that is wrong with them.
///
/// A field that does not validate is `None`; [`build`](Self::build) then reports all of them.
#[derive(Debug)]
pub struct Fields<'a> {
    input: Input<'a>,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
    forbid_extra: bool,
    errors: Vec<FieldError>,
    /// What ended the reading; nothing is read after it.
    raised: Option<Invalid>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(input: Input<'a>, map: &'a Map<String, Value>) -> Self {
        Self {
            input,
            map,
            known: Vec::new(),
            forbid_extra: false,
            errors: Vec::new(),
            raised: None,
        }
    }

    /// Whether the object has this key.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Accepts a key that somebody else reads, such as the tag that chose this model.
    pub fn accept(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// A field that must be there.
    pub fn required<T: FromInput>(&mut self, name: &'static str) -> Option<T> {
        self.required_with(name, T::from_input)
    }

    /// A field that must be there, read by `reader`.
    pub fn required_with<T>(
        &mut self,
        name: &'static str,
        reader: impl FnOnce(Input<'_>) -> Checked<T>,
    ) -> Option<T> {
        if let Some(found) = self.present(name, reader) {
            return found;
        }
        let place = InputPath::Key(self.input.place, name);
        let input = Input { place: &place, ..self.input };
        self.errors.push(input.line("missing", "Field required"));
        None
    }

    /// A field that is `default` where the object does not have it. `null` is a value, not absence.
    pub fn or<T: FromInput>(&mut self, name: &'static str, default: T) -> Option<T> {
        self.or_with(name, default, T::from_input)
    }

    /// A field that is its type's default where the object does not have it.
    pub fn or_default<T: FromInput + Default>(&mut self, name: &'static str) -> Option<T> {
        self.or_with(name, T::default(), T::from_input)
    }

    /// A field that is `default` where the object does not have it, else read by `reader`.
    pub fn or_with<T>(
        &mut self,
        name: &'static str,
        default: T,
        reader: impl FnOnce(Input<'_>) -> Checked<T>,
    ) -> Option<T> {
        self.present(name, reader).unwrap_or(Some(default))
    }

    /// The field if the object has it: `Some(None)` if it is there and wrong.
    fn present<T>(
        &mut self,
        name: &'static str,
        reader: impl FnOnce(Input<'_>) -> Checked<T>,
    ) -> Option<Option<T>> {
        self.known.push(name);
        let value = self.map.get(name)?;
        if self.raised.is_some() {
            return Some(None);
        }
        let place = InputPath::Key(self.input.place, name);
        let input = Input { value, place: &place, context: self.input.context };
        let read = reader(input).map_err(|invalid| invalid.settle(&place));
        Some(self.settled(read))
    }

    /// Something that is read from the object as a whole, such as the part of it that belongs to
    /// another type; what is wrong with it is reported together with the fields.
    pub fn whole<T>(&mut self, reader: impl FnOnce(Input<'_>) -> Checked<T>) -> Option<T> {
        if self.raised.is_some() {
            return None;
        }
        let read = reader(self.input).map_err(|invalid| invalid.settle(self.input.place));
        self.settled(read)
    }

    fn settled<T>(&mut self, read: Checked<T>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(Invalid::Fields(errors)) => {
                self.errors.extend(errors);
                None
            }
            Err(raised) => {
                self.raised = Some(raised);
                None
            }
        }
    }

    /// Refuses keys that were not asked for, as a few models of the reference do.
    pub fn forbid_extra(&mut self) {
        self.forbid_extra = true;
    }

    /// The keys that were not asked for so far, for models that keep them.
    #[must_use]
    pub fn extra(&self) -> Map<String, Value> {
        self.unknown().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn unknown(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter().filter(|(key, _)| !self.known.contains(&key.as_str()))
    }

    /// Makes the model if every field is there; `make` answers `None` only through fields that are
    /// not.
    ///
    /// # Errors
    ///
    /// Everything that was wrong with the fields.
    pub fn build<T>(mut self, make: impl FnOnce() -> Option<T>) -> Checked<T> {
        if let Some(raised) = self.raised.take() {
            return Err(raised);
        }
        self.report_unknown_keys();
        if !self.errors.is_empty() {
            return Err(Invalid::Fields(self.errors));
        }
        make().ok_or_else(|| {
            let message = "a model was left incomplete although every field was read";
            self.input.raise(Error::new(ErrorKind::Internal, message))
        })
    }

    fn report_unknown_keys(&mut self) {
        let written_by_a_person = self.input.context.refuses_unknown_keys();
        if !written_by_a_person && !self.forbid_extra {
            return;
        }
        let unknown: Vec<&String> = self.unknown().map(|(key, _)| key).collect();
        for key in unknown {
            let place = InputPath::Key(self.input.place, key);
            let input = Input { place: &place, ..self.input };
            self.errors.push(if written_by_a_person {
                input.line("unknown_key", unknown_key(key, &self.known))
            } else {
                input.line("extra_forbidden", "Extra inputs are not permitted")
            });
        }
    }
}

fn unknown_key(key: &str, known: &[&'static str]) -> String {
    match did_you_mean(key, known.iter().copied()) {
        Some(meant) => format!("unknown key `{key}`; did you mean `{meant}`?"),
        None => format!("unknown key `{key}`; known keys are {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lax::Context;

    #[test]
    fn keeps_or_refuses_what_was_not_asked_for() {
        let value = json!({"a": 1, "b": 2, "c": 3});
        let context = Context::new();
        let kept = context.check(&value, |input| {
            let mut fields = input.fields("Model")?;
            let a: Option<i128> = fields.required("a");
            let extra = fields.extra();
            fields.build(|| Some((a?, extra)))
        });
        assert_eq!(kept.map_err(Invalid::into_error).unwrap().1.len(), 2);
        let refused = context.check(&value, |input| {
            let mut fields = input.fields("Model")?;
            let a: Option<i128> = fields.required("a");
            fields.forbid_extra();
            fields.build(|| a)
        });
        let error = refused.map_err(Invalid::into_error).unwrap_err();
        assert_eq!(
            error.message(),
            "b: Extra inputs are not permitted\nc: Extra inputs are not permitted"
        );
    }

    #[test]
    fn nothing_is_read_after_what_ends_the_reading() {
        let value = json!({"a": 1, "b": 2});
        let ended = Context::new().check(&value, |input| {
            let mut fields = input.fields("Model")?;
            let a = fields.required_with("a", |input| Err::<i128, _>(input.type_error("no")));
            let b = fields.required_with("b", |_| -> Checked<i128> { panic!("read `b`") });
            fields.build(|| a.or(b))
        });
        assert_eq!(
            ended.map_err(Invalid::into_error).unwrap_err().class(),
            Some(crate::ErrorClass::TypeError)
        );
    }
}
