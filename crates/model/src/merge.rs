//! Merging settings.

use serde_json::{Map, Value};

/// `over` on top of `base`: objects under the same key are merged, anything else is replaced.
///
/// ```
/// use bastide_model::merge::deep_merge;
/// use serde_json::json;
///
/// let (base, over) = (json!({"a": {"x": 1}, "b": 1}), json!({"a": {"y": 2}, "b": null}));
/// let merged = deep_merge(base.as_object().unwrap(), over.as_object().unwrap());
/// assert_eq!(json!(merged), json!({"a": {"x": 1, "y": 2}, "b": null}));
/// ```
#[must_use]
pub fn deep_merge(base: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = base.clone();
    for (key, value) in over {
        let value = match (merged.get(key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => {
                Value::Object(deep_merge(base, over))
            }
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    merged
}
