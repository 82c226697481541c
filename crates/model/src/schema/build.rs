//! The few shapes that schemas are made of.

use serde_json::{Map, Value, json};

pub(super) fn text() -> Value {
    json!({"type": "string"})
}

pub(super) fn flag() -> Value {
    json!({"type": "boolean"})
}

pub(super) fn integer() -> Value {
    json!({"type": "integer"})
}

/// Exactly this word.
pub(super) fn word(word: &str) -> Value {
    json!({"const": word})
}

/// One of these words.
pub(super) fn words(words: &[&str]) -> Value {
    json!({"enum": words})
}

pub(super) fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// An object with any keys.
pub(super) fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// The same, or `null`.
pub(super) fn nothing_or(mut schema: Value) -> Value {
    match schema.get("type").cloned() {
        Some(kind) => {
            schema["type"] = json!([kind, "null"]);
            schema
        }
        None => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

/// An object with these fields and no others.
#[derive(Debug)]
pub(super) struct Fields {
    about: String,
    properties: Map<String, Value>,
    required: Vec<String>,
}

impl Fields {
    pub(super) fn new(about: &str) -> Self {
        Self { about: about.to_owned(), properties: Map::new(), required: Vec::new() }
    }

    /// A field that must be there.
    pub(super) fn required(mut self, name: &str, mut schema: Value, about: &str) -> Self {
        schema["description"] = about.into();
        self.properties.insert(name.to_owned(), schema);
        self.required.push(name.to_owned());
        self
    }

    /// A field that is `usual` where it is not there.
    pub(super) fn optional(
        mut self,
        name: &str,
        mut schema: Value,
        usual: impl Into<Value>,
        about: &str,
    ) -> Self {
        schema["description"] = about.into();
        schema["default"] = usual.into();
        self.properties.insert(name.to_owned(), schema);
        self
    }

    /// A text that need not be there.
    pub(super) fn maybe_text(self, name: &str, about: &str) -> Self {
        self.optional(name, nothing_or(text()), Value::Null, about)
    }

    /// A key that need not be there: itself, or where it is.
    pub(super) fn maybe_key(self, name: &str, about: &str) -> Self {
        let key = json!({"anyOf": [nothing_or(text()), reference("key_reference")]});
        self.optional(name, key, Value::Null, about)
    }

    /// A number that need not be there.
    pub(super) fn maybe_integer(self, name: &str, about: &str) -> Self {
        self.optional(name, nothing_or(integer()), Value::Null, about)
    }

    pub(super) fn build(self) -> Value {
        let mut schema = json!({
            "description": self.about,
            "type": "object",
            "properties": self.properties,
            "additionalProperties": false,
        });
        if !self.required.is_empty() {
            schema["required"] = self.required.into();
        }
        schema
    }
}
