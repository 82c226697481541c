//! Lists, maps, words and unions, and the plain types.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::input::{FromInput, Input};
use super::input_path::InputPath;
use super::invalid::{Checked, Invalid};
use super::number;

/// A word, and how to read what it stands for.
pub type Choice<T> = (&'static str, fn(Input<'_>) -> Checked<T>);

impl Input<'_> {
    /// Reads an array item by item, whose complaint about anything else is tagged `tag`.
    fn items<T>(self, kind: &str, reader: impl Fn(Input<'_>) -> Checked<T>) -> Checked<Vec<T>> {
        let Some(items) = self.value.as_array() else {
            let message = format!("Input should be a valid {kind}");
            return Err(self.field_error(&format!("{kind}_type"), message));
        };
        let mut read = Vec::with_capacity(items.len());
        let mut errors = Vec::new();
        for (index, value) in items.iter().enumerate() {
            let place = InputPath::Index(self.place, index);
            let item = Input { value, place: &place, context: self.context };
            match reader(item).map_err(|invalid| invalid.settle(&place)) {
                Ok(item) => read.push(item),
                Err(Invalid::Fields(more)) => errors.extend(more),
                Err(raised) => return Err(raised),
            }
        }
        if errors.is_empty() { Ok(read) } else { Err(Invalid::Fields(errors)) }
    }

    /// Reads a list with `reader`.
    ///
    /// # Errors
    ///
    /// Field errors of every wrong item.
    pub fn list<T>(self, reader: impl Fn(Input<'_>) -> Checked<T>) -> Checked<Vec<T>> {
        self.items("list", reader)
    }

    /// Reads what the reference declares as a tuple of any length; only the complaint differs from
    /// [`list`](Self::list).
    ///
    /// # Errors
    ///
    /// Field errors of every wrong item.
    pub fn tuple<T>(self, reader: impl Fn(Input<'_>) -> Checked<T>) -> Checked<Vec<T>> {
        self.items("tuple", reader)
    }

    /// Reads an object whose values are all of one type, in its own order.
    ///
    /// # Errors
    ///
    /// Field errors of every wrong value.
    pub fn map<T>(self, reader: impl Fn(Input<'_>) -> Checked<T>) -> Checked<IndexMap<String, T>> {
        let Some(map) = self.value.as_object() else {
            return Err(self.field_error("dict_type", "Input should be a valid dictionary"));
        };
        let mut read = IndexMap::with_capacity(map.len());
        let mut errors = Vec::new();
        for (key, value) in map {
            let place = InputPath::Key(self.place, key);
            let item = Input { value, place: &place, context: self.context };
            match reader(item).map_err(|invalid| invalid.settle(&place)) {
                Ok(item) => {
                    read.insert(key.clone(), item);
                }
                Err(Invalid::Fields(more)) => errors.extend(more),
                Err(raised) => return Err(raised),
            }
        }
        if errors.is_empty() { Ok(read) } else { Err(Invalid::Fields(errors)) }
    }

    /// Reads the values of `map`, whose keys the reference leaves out of its `loc`. It stops at the
    /// first that is wrong; a person is told of all of them.
    ///
    /// # Errors
    ///
    /// What is wrong with a value, or with all of them.
    pub fn keyed<T>(
        self,
        map: &Map<String, Value>,
        reader: impl Fn(Input<'_>) -> Checked<T>,
    ) -> Checked<IndexMap<String, T>> {
        let mut read = IndexMap::with_capacity(map.len());
        let mut errors = Vec::new();
        for (key, value) in map {
            let place = InputPath::Hidden(self.place, key);
            match reader(Input { value, place: &place, context: self.context }) {
                Ok(item) => {
                    read.insert(key.clone(), item);
                }
                Err(invalid) if !self.is_from_person() => return Err(invalid),
                Err(invalid) => match invalid.settle(&place) {
                    Invalid::Fields(more) => errors.extend(more),
                    raised => return Err(raised),
                },
            }
        }
        if errors.is_empty() { Ok(read) } else { Err(Invalid::Fields(errors)) }
    }

    /// Reads one of a few words; anything else, another spelling included, is refused.
    ///
    /// # Errors
    ///
    /// A field error that lists the words.
    pub fn one_of<T: Copy>(self, words: &[(&str, T)]) -> Checked<T> {
        let found =
            self.value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let quoted: Vec<String> = words.iter().map(|(word, _)| format!("'{word}'")).collect();
            self.field_error("literal_error", format!("Input should be {}", listed(&quoted)))
        })
    }

    /// Reads an object by the tag it carries under `key`.
    ///
    /// # Errors
    ///
    /// A field error if there is no tag, or none of these; else what the tag's reader says.
    pub fn tagged<T>(self, key: &str, readers: &[Choice<T>]) -> Checked<T> {
        let Some(map) = self.value.as_object() else {
            let message = "Input should be a valid dictionary or object to extract fields from";
            return Err(self.field_error("model_attributes_type", message));
        };
        let Some(tag) = map.get(key) else {
            let message = format!("Unable to extract tag using discriminator '{key}'");
            return Err(self.field_error("union_tag_not_found", message));
        };
        let reader = readers.iter().find(|(word, _)| tag.as_str() == Some(word));
        let Some((word, reader)) = reader else {
            let words = readers.iter().map(|(word, _)| *word);
            if let Some(told) = tag.as_str().and_then(|tag| self.unknown_word(key, tag, words)) {
                return Err(told);
            }
            let known: Vec<String> = readers.iter().map(|(word, _)| format!("'{word}'")).collect();
            let message = format!(
                "Input tag '{}' found using '{key}' does not match any of the expected tags: {}",
                crate::python::text(tag),
                known.join(", ")
            );
            return Err(self.field_error("union_tag_invalid", message));
        };
        let place = InputPath::Label(self.place, word);
        reader(Input { place: &place, ..self })
    }

    /// Reads with the first of `choices` that accepts the value; where none does, the complaints of
    /// all of them, each under its label.
    ///
    /// # Errors
    ///
    /// The complaints of every choice.
    pub fn first_of<T>(self, choices: &[Choice<T>]) -> Checked<T> {
        let mut errors = Vec::new();
        for (label, reader) in choices {
            let place = InputPath::Label(self.place, label);
            let input = Input { place: &place, ..self };
            match reader(input).map_err(|invalid| invalid.settle(&place)) {
                Err(Invalid::Fields(more)) => errors.extend(more),
                other => return other,
            }
        }
        Err(Invalid::Fields(errors))
    }
}

/// `'a'`, `'a' or 'b'`, `'a', 'b' or 'c'`.
fn listed(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [init @ .., last] => format!("{} or {last}", init.join(", ")),
    }
}

impl FromInput for String {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let text = input.value.as_str().map(str::to_owned);
        text.ok_or_else(|| input.field_error("string_type", "Input should be a valid string"))
    }
}

impl FromInput for i128 {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        number::int(input)
    }
}

impl FromInput for f64 {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        number::float(input)
    }
}

impl FromInput for bool {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        number::boolean(input)
    }
}

impl<T: FromInput> FromInput for Option<T> {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        if input.value.is_null() { Ok(None) } else { T::from_input(input).map(Some) }
    }
}

impl<T: FromInput> FromInput for Vec<T> {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        input.list(T::from_input)
    }
}

impl<T: FromInput> FromInput for IndexMap<String, T> {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        input.map(T::from_input)
    }
}

/// Any JSON value, as it is.
impl FromInput for Value {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        Ok(input.value.clone())
    }
}
