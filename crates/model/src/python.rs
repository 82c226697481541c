//! How the reference's language names and writes values, where its texts quote them.

use serde_json::Value;

use crate::json_text::{float_text, number_text};
use crate::lax::is_int;

/// The type of a JSON value, such as `NoneType` or `dict`.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if is_int(number) => "int",
        Value::Number(_) => "float",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// `str(value)`.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => {
            let mut out = String::new();
            write_repr(value, &mut out);
            out
        }
    }
}

/// `repr(value)`.
fn write_repr(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => out.push_str(&number_text(number, |float| {
            if float.is_finite() { float_text(float) } else { float.to_string() }
        })),
        Value::String(text) => out.push_str(&repr(text)),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write_repr(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                out.push_str(&repr(key));
                out.push_str(": ");
                write_repr(value, out);
            }
            out.push('}');
        }
    }
}

/// `repr(text)`: in single quotes unless that would need more escapes.
pub(crate) fn repr(text: &str) -> String {
    repr_bytes(text.as_bytes())
}

/// `repr` of a file name; its language keeps bytes that are not UTF-8 as lone surrogates.
#[must_use]
pub fn repr_bytes(name: &[u8]) -> String {
    let quote = if name.contains(&b'\'') && !name.contains(&b'"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                letter if letter == quote => out.extend(['\\', letter]),
                letter if is_printable(letter) => out.push(letter),
                letter => out.push_str(&escaped(u32::from(letter))),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&escaped(0xdc00 + u32::from(*byte)));
        }
    }
    out.push(quote);
    out
}

fn escaped(code: u32) -> String {
    match code {
        0..=0xff => format!("\\x{code:02x}"),
        0x100..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Whether a letter is shown as it is. Both languages decide by the same Unicode categories; after
/// a first letter, `escape_debug` also leaves combining marks alone, as `repr` does.
fn is_printable(letter: char) -> bool {
    if matches!(letter, '"' | '\'') {
        return true;
    }
    let mut buffer = String::from("a");
    buffer.push(letter);
    buffer.escape_debug().nth(1) == Some(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_values_as_the_reference_quotes_them() {
        let value = serde_json::json!({"a": [null, true, 1, 1e2, "it's"], "b": {}});
        assert_eq!(text(&value), r#"{'a': [None, True, 1, 100.0, "it's"], 'b': {}}"#);
    }

    #[test]
    fn writes_text_as_the_reference_quotes_it() {
        let cases = [
            ("", "''"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\\b\n\u{1b}", "'a\\\\b\\n\\x1b'"),
            ("é\u{301}\u{a0}\u{202e}", "'é\u{301}\\xa0\\u202e'"),
            ("😀\u{e0001}", "'😀\\U000e0001'"),
        ];
        for (text, want) in cases {
            assert_eq!(repr(text), want, "text {text:?}");
        }
        assert_eq!(repr_bytes(b"a\xff\xc3(\xe9"), "'a\\udcff\\udcc3(\\udce9'");
    }
}
