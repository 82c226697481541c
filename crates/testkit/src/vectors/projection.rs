//! What of an answer is compared where only the outcome binds.

use serde_json::{Map, Value};

use super::materialize::outcome;
use super::mount_calls::helper_calls;

/// Reduces an answer of either side to the part that binds.
pub(crate) type Projection = fn(&Value) -> Value;

/// The projection of a function, where it has one.
pub(crate) fn projection_of(function: &str) -> Option<Projection> {
    PROJECTIONS.iter().find(|(name, _)| *name == function).map(|(_, projection)| *projection)
}

const PROJECTIONS: &[(&str, Projection)] = &[
    ("apply_manifest", outcome),
    ("apply_manifest_outcome", outcome),
    ("session_start", outcome),
    ("mount_activate", helper_calls),
    ("mount_deactivate", helper_calls),
    ("mount_outcome", helper_calls),
    ("mount_restore_after_snapshot", helper_calls),
    ("mount_teardown_for_snapshot", helper_calls),
    ("tool_schema", tool_schema),
    ("exec_command_invoke", tool_texts),
    ("write_stdin_invoke", tool_texts),
    ("view_image_invoke", tool_texts),
];

/// Names, types, required fields and defaults; the prose for the model is ours, and so is the way a
/// grammar is written down.
fn tool_schema(answer: &Value) -> Value {
    match answer {
        Value::Object(object) => {
            let mut kept = Map::new();
            for (key, value) in object {
                match (key.as_str(), value) {
                    ("description" | "title" | "definition", Value::String(_)) => {}
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

/// The answer with our and the reference's sentences replaced by what they mean.
fn tool_texts(answer: &Value) -> Value {
    match answer {
        Value::Object(object) => {
            let fields = object.iter().map(|(key, value)| match (key.as_str(), value) {
                ("output" | "text", Value::String(text)) => {
                    let lines: Vec<String> = text.split('\n').map(meaning).collect();
                    (key.clone(), lines.join("\n").into())
                }
                _ => (key.clone(), value.clone()),
            });
            Value::Object(fields.collect())
        }
        _ => answer.clone(),
    }
}

/// How a sentence starts, where the data after that end, and what it means.
type MessagePattern = (&'static str, &'static str, &'static str);

/// The sentences of the tools, the reference's and ours, as far as it takes to know them.
const SENTENCES: &[MessagePattern] = &[
    ("Invalid tool arguments for ", ".", "wrong arguments"),
    ("Wrong arguments: ", ".", "wrong arguments"),
    ("Invalid tool arguments", ".", "unreadable arguments"),
    ("The arguments cannot be read", ".", "unreadable arguments"),
    ("Invalid workdir", ".", "outside"),
    ("Invalid path", ".", "outside"),
    ("workdir has to be in", " ", "outside"),
    ("path has to be in", " ", "outside"),
    ("Command timed out after ", " ", "timeout"),
    ("The command took longer than ", " ", "timeout"),
    ("PTY transport failed", " ", "no terminal"),
    ("No interactive session", " ", "no terminal"),
    ("write_stdin failed: ", "\n", "no process"),
    ("Nothing written: ", "\n", "no process"),
    ("stdin is not available for this process", ".", "no stdin"),
    ("This process reads nothing", ".", "no stdin"),
    ("image path `", "` was not found", "no image"),
    ("There is no image at `", "`", "no image"),
    ("unable to read image at `", "\n", "cannot read"),
    ("Cannot read `", "\n", "cannot read"),
    ("image path `", "` exceeded", "too large"),
    ("`", "` is larger than", "too large"),
    ("image path `", "` is not a supported", "unknown kind"),
    ("`", "` is not an image", "unknown kind"),
];

fn meaning(line: &str) -> String {
    let ended = format!("{line}\n");
    let found = SENTENCES.iter().find_map(|(start, end, meaning)| {
        let (data, _) = ended.strip_prefix(start)?.split_once(end)?;
        Some(format!("<{meaning}: {data}>"))
    });
    found.unwrap_or_else(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_the_data_of_sentences() {
        let theirs =
            json!({"output": "Output:\nCommand timed out after 1.500 seconds.", "calls": []});
        let ours =
            json!({"output": "Output:\nThe command took longer than 1.500 seconds.", "calls": []});
        let other =
            json!({"output": "Output:\nThe command took longer than 2.500 seconds.", "calls": []});
        assert_eq!(tool_texts(&theirs), tool_texts(&ours));
        assert_ne!(tool_texts(&theirs), tool_texts(&other));
    }

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
