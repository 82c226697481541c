//! What of an answer is compared where only the outcome binds.

use serde_json::{Map, Value};

/// Reduces an answer of either side to the part that binds.
pub(crate) type Projection = fn(&Value) -> Value;

/// The projection of a function, where it has one.
pub(crate) fn projection_of(function: &str) -> Option<Projection> {
    PROJECTIONS.iter().find(|(name, _)| *name == function).map(|(_, projection)| *projection)
}

const PROJECTIONS: &[(&str, Projection)] = &[("tool_schema", tool_schema)];

/// Names, types, required fields and defaults; the prose for the model is ours.
fn tool_schema(answer: &Value) -> Value {
    match answer {
        Value::Object(object) => {
            let mut kept = Map::new();
            for (key, value) in object {
                match (key.as_str(), value) {
                    ("description" | "title", Value::String(_)) => {}
                    // Keys below `properties` are names of arguments, never words of the schema.
                    ("properties", Value::Object(arguments)) => {
                        let schemas = arguments.iter();
                        let schemas =
                            schemas.map(|(name, schema)| (name.clone(), tool_schema(schema)));
                        kept.insert(key.clone(), Value::Object(schemas.collect()));
                    }
                    _ => {
                        kept.insert(key.clone(), tool_schema(value));
                    }
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.iter().map(tool_schema).collect(),
        _ => answer.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drops_prose_but_not_arguments_named_like_it() {
        let schema = json!({
            "description": "prose",
            "properties": {"description": {"type": "string", "title": "Description"}},
        });
        let kept = json!({"properties": {"description": {"type": "string"}}});
        assert_eq!(tool_schema(&schema), kept);
    }
}
