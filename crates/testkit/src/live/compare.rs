//! Where two outcomes differ, leaf by leaf.

use serde_json::Value;

/// One field in which two calls differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leaf {
    /// Where it is in the call.
    pub(super) field: String,
    /// What the reference has there, as JSON; `absent` if nothing.
    pub(super) reference: String,
    /// What we have there.
    pub(super) ours: String,
}

/// Every field in which `ours` differs from `reference`.
pub(super) fn differences(reference: &Value, ours: &Value) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    walk("", Some(reference), Some(ours), &mut leaves);
    leaves
}

fn walk(at: &str, reference: Option<&Value>, ours: Option<&Value>, leaves: &mut Vec<Leaf>) {
    let below = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match (reference, ours) {
        (Some(Value::Object(theirs)), Some(Value::Object(own))) => {
            let keys = theirs.keys().chain(own.keys().filter(|key| !theirs.contains_key(*key)));
            for key in keys {
                walk(&below(key), theirs.get(key), own.get(key), leaves);
            }
        }
        (Some(Value::Array(theirs)), Some(Value::Array(own))) => {
            for index in 0..theirs.len().max(own.len()) {
                walk(&below(&index.to_string()), theirs.get(index), own.get(index), leaves);
            }
        }
        (reference, ours) if same(reference, ours) => {}
        (reference, ours) => {
            let (reference, ours) = (shown(reference), shown(ours));
            leaves.push(Leaf { field: at.to_owned(), reference, ours });
        }
    }
}

/// Numbers compare by value: a second is a second, however it is written.
fn same(reference: Option<&Value>, ours: Option<&Value>) -> bool {
    match (reference, ours) {
        (Some(Value::Number(reference)), Some(Value::Number(ours))) => {
            reference == ours || reference.as_f64() == ours.as_f64()
        }
        _ => reference == ours,
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_every_field_that_differs() {
        let leaves = differences(
            &json!({"a": {"b": 1, "c": [1, 2]}, "d": null}),
            &json!({"a": {"b": 1.0, "c": [1, 3, 4]}, "e": "x"}),
        );
        let reported: Vec<_> = leaves.iter().map(|leaf| leaf.field.as_str()).collect();
        assert_eq!(reported, ["a.c.1", "a.c.2", "d", "e"]);
        assert_eq!((leaves[2].reference.as_str(), leaves[2].ours.as_str()), ("null", "absent"));
    }
}
