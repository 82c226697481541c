//! JSON as text, byte for byte as the reference writes it.
//!
//! It has two writers, which differ in the order of keys, in what they escape and in how they write
//! fractions. Logs are compared and digests are made over these bytes.

use std::fmt::Write as _;

use serde_json::{Number, Value};

use crate::lax::is_int;

/// Compact JSON with sorted keys and nothing but ASCII.
///
/// ```
/// use serde_json::json;
///
/// let text = bastide_model::json_text::sorted_ascii(&json!({"b": "é", "a": [1e-7, null]}));
/// assert_eq!(text, r#"{"a":[1e-07,null],"b":"\u00e9"}"#);
/// ```
#[must_use]
pub fn sorted_ascii(value: &Value) -> String {
    let mut out = String::new();
    write_sorted(value, &mut out);
    out
}

fn write_sorted(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number_text(number, float_text)),
        Value::String(text) => write_ascii(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_sorted(item, out);
            }
            out.push(']');
        }
        Value::Object(object) => {
            let mut fields: Vec<_> = object.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_ascii(key, out);
                out.push(':');
                write_sorted(value, out);
            }
            out.push('}');
        }
    }
}

fn write_ascii(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Compact JSON with keys in their own order and text as it is.
#[must_use]
pub fn compact(value: &Value) -> String {
    let mut value = value.clone();
    rewrite_numbers(&mut value);
    value.to_string()
}

fn rewrite_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let text = number_text(number, |float| {
                Number::from_f64(float).map_or_else(|| "null".to_owned(), |float| float.to_string())
            });
            if let Ok(written) = text.parse() {
                *number = written;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite_numbers),
        Value::Object(object) => object.values_mut().for_each(rewrite_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Whole numbers of any size keep their digits; fractions are read and written again.
fn number_text(number: &Number, float: impl Fn(f64) -> String) -> String {
    match number.to_string() {
        zero if zero == "-0" => "0".to_owned(),
        digits if is_int(number) => digits,
        text => match text.parse() {
            Ok(value) => float(value),
            Err(_) => text,
        },
    }
}

/// A fraction in the shortest form that reads back the same, as the reference's language shows it.
///
/// ```
/// use bastide_model::json_text::float_text;
///
/// assert_eq!(float_text(1e16), "1e+16");
/// assert_eq!(float_text(100.0), "100.0");
/// ```
#[must_use]
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
