//! The environment variables of a sandbox.

use indexmap::IndexMap;
use serde_json::Value;

use crate::Result;
use crate::custom::Custom;
use crate::lax::{Checked, Dump, FromInput, Input, Object};
use crate::registry::kinds::Builtin;

/// The environment of every command: variables by name, in the order they were written.
///
/// ```
/// use bastide_model::environment::Environment;
/// use bastide_model::lax::{self, Dump};
/// use serde_json::json;
///
/// let environment: Environment = lax::read(&json!({"value": {"A": "1", "B": {"value": "2"}}}))?;
/// assert_eq!(environment.fixed()["B"], "2");
/// assert_eq!(environment.dump()?, json!({"value": {"A": "1", "B": {"type": "str", "value": "2"}}}));
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Environment {
    /// The variables.
    pub value: IndexMap<String, Variable>,
}

/// One variable, in one of the three forms in which it can be written.
#[derive(Debug, Clone, PartialEq)]
pub enum Variable {
    /// Its text.
    Plain(String),
    /// A typed value.
    Value(EnvValue),
    /// A typed value with something said about it.
    Entry(EnvEntry),
}

/// A value of a variable, or how to get at it.
#[derive(Debug, Clone, PartialEq)]
pub enum EnvValue {
    /// The text itself.
    Str(String),
    /// A type of the program's own; only the program knows how to resolve it.
    Custom(Custom),
}

/// A typed value with something said about it.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvEntry {
    /// What it is for, for people.
    pub description: Option<String>,
    /// Whether it is meant for this session only; kept, not acted upon.
    pub ephemeral: bool,
    /// The value.
    pub value: EnvValue,
}

impl Environment {
    /// Every variable as an entry.
    #[must_use]
    pub fn normalized(&self) -> IndexMap<String, EnvEntry> {
        let entry = |value: EnvValue| EnvEntry { description: None, ephemeral: false, value };
        let variables = self.value.iter().map(|(name, variable)| {
            let variable = match variable {
                Variable::Plain(text) => entry(EnvValue::Str(text.clone())),
                Variable::Value(value) => entry(value.clone()),
                Variable::Entry(entry) => entry.clone(),
            };
            (name.clone(), variable)
        });
        variables.collect()
    }

    /// The variables whose text is written in the manifest itself.
    #[must_use]
    pub fn fixed(&self) -> IndexMap<String, String> {
        let fixed = self.value.iter().filter_map(|(name, variable)| match variable.source() {
            Source::Text(text) => Some((name.clone(), text.to_owned())),
            Source::Custom(_) => None,
        });
        fixed.collect()
    }

    /// The variables that a program has to resolve, in order.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &Custom)> {
        self.value.iter().filter_map(|(name, variable)| match variable.source() {
            Source::Text(_) => None,
            Source::Custom(custom) => Some((name.as_str(), custom)),
        })
    }

    /// The text of every variable, in order; `resolve` is asked for the
    /// [pending](Self::pending) ones.
    ///
    /// A program whose values take time to fetch fetches the pending ones first and answers from
    /// what it has.
    ///
    /// # Errors
    ///
    /// The first that `resolve` answers with.
    pub fn resolve(
        &self,
        mut resolve: impl FnMut(&str, &Custom) -> Result<String>,
    ) -> Result<IndexMap<String, String>> {
        let variables = self.value.iter().map(|(name, variable)| {
            let text = match variable.source() {
                Source::Text(text) => text.to_owned(),
                Source::Custom(custom) => resolve(name, custom)?,
            };
            Ok((name.clone(), text))
        });
        variables.collect()
    }
}

/// Where the text of a variable comes from.
enum Source<'a> {
    Text(&'a str),
    Custom(&'a Custom),
}

impl Variable {
    fn source(&self) -> Source<'_> {
        let value = match self {
            Self::Plain(text) => return Source::Text(text),
            Self::Value(value) => value,
            Self::Entry(entry) => &entry.value,
        };
        match value {
            EnvValue::Str(text) => Source::Text(text),
            EnvValue::Custom(custom) => Source::Custom(custom),
        }
    }
}

impl From<&str> for Variable {
    fn from(text: &str) -> Self {
        Self::Plain(text.to_owned())
    }
}

/// The types of values that come with Bastide.
pub(crate) const BUILTIN: [Builtin<EnvValue>; 1] = [("str", "StrEnvValue", |input| {
    let mut fields = input.fields("StrEnvValue")?;
    fields.accept("type");
    let value = fields.required("value");
    fields.build(|| Some(EnvValue::Str(value?)))
})];

impl FromInput for Environment {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Environment")?;
        let value = fields.or_with("value", IndexMap::new(), |input| {
            let Some(map) = input.value().as_object() else {
                let name = input.type_name();
                let message = format!("Environment mapping must be a mapping, got {name}");
                return Err(input.value_error(message));
            };
            input.keyed(map, Variable::from_input)
        });
        fields.build(|| Some(Self { value: value? }))
    }
}

impl FromInput for Variable {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        match input.value() {
            Value::String(text) => Ok(Self::Plain(text.clone())),
            Value::Object(map) => {
                let typed =
                    map.contains_key("type") || map.get("value").is_some_and(Value::is_string);
                if typed {
                    EnvValue::from_input(input).map(Self::Value)
                } else {
                    EnvEntry::from_input(input).map(Self::Entry)
                }
            }
            _ => {
                let name = input.type_name();
                let message =
                    format!("environment value must be a str, EnvValue, or EnvEntry, got {name}");
                Err(input.wrong_type("string_type", message))
            }
        }
    }
}

impl FromInput for EnvValue {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let Some(map) = input.value().as_object() else {
            let name = input.type_name();
            let message = format!("env value must be an EnvValue or mapping, got {name}");
            return Err(input.wrong_type("model_type", message));
        };
        // Values were written without a type once, when there was only one.
        if let (1, Some(Value::String(text))) = (map.len(), map.get("value")) {
            return Ok(Self::Str(text.clone()));
        }
        let Some(tag) = map.get("type").and_then(Value::as_str) else {
            let message = "env value mapping must include a string `type` field";
            return Err(input.without_type(message));
        };
        input.registry().env_values().read(input, tag, "env value")
    }
}

impl FromInput for EnvEntry {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("EnvEntry")?;
        let description = fields.or_default("description");
        let ephemeral = fields.or("ephemeral", false);
        let value = fields.required("value");
        fields.build(|| {
            Some(Self { description: description?, ephemeral: ephemeral?, value: value? })
        })
    }
}

impl Dump for Environment {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("value", &self.value)?;
        Ok(out.into())
    }
}

impl Dump for Variable {
    fn dump(&self) -> Result<Value> {
        match self {
            Self::Plain(text) => text.dump(),
            Self::Value(value) => value.dump(),
            Self::Entry(entry) => entry.dump(),
        }
    }
}

impl Dump for EnvValue {
    fn dump(&self) -> Result<Value> {
        match self {
            Self::Str(text) => {
                let mut out = Object::new();
                out.put("type", "str")?;
                out.put("value", text)?;
                Ok(out.into())
            }
            Self::Custom(custom) => custom.tagged_fields().map(Value::from),
        }
    }
}

impl Dump for EnvEntry {
    fn dump(&self) -> Result<Value> {
        let mut out = Object::new();
        out.put("description", &self.description)?;
        out.put("ephemeral", &self.ephemeral)?;
        out.put("value", &self.value)?;
        Ok(out.into())
    }
}
