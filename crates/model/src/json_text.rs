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

/// Reads JSON as the reference's language does: `NaN` and `Infinity` are numbers, too. Here they are
/// all numbers too large for anything.
///
/// ```
/// let value = bastide_model::json_text::parse(r#"{"NaN": NaN}"#).unwrap();
/// assert!(value["NaN"].is_number());
/// ```
///
/// # Errors
///
/// What is wrong with the text.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    match serde_json::from_str(text) {
        Err(error) if text.contains("NaN") || text.contains("Infinity") => {
            serde_json::from_str(&without_words_for_numbers(text)).map_err(|_| error)
        }
        read => read,
    }
}

fn without_words_for_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_inside_text = false;
    while let Some(letter) = rest.chars().next() {
        let word = ["NaN", "Infinity", "-Infinity"].into_iter().find(|word| rest.starts_with(word));
        let stands_alone = !out.ends_with(|c: char| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let taken = match word {
            Some(word) if !is_inside_text && stands_alone => {
                out.push_str("1e999");
                word.len()
            }
            _ => {
                let escaped = if is_inside_text && letter == '\\' { 2 } else { 1 };
                is_inside_text ^= letter == '"';
                let taken: usize = rest.chars().take(escaped).map(char::len_utf8).sum();
                out.push_str(&rest[..taken]);
                taken
            }
        };
        rest = &rest[taken..];
    }
    out
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
pub(crate) fn number_text(number: &Number, float: impl Fn(f64) -> String) -> String {
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
    let Some(number) = Number::from_f64(value) else {
        return if value.is_nan() { "NaN" } else { infinity(value) }.to_owned();
    };
    // Where two shortest forms are equally near, both languages take the even one, but the standard
    // library does not; so the digits come from there.
    let written = number.to_string();
    let (sign, written) = match written.strip_prefix('-') {
        Some(written) => ("-", written),
        None => ("", written.as_str()),
    };
    let (mantissa, exponent) = written.split_once('e').unwrap_or((written, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    let digits = all.trim_start_matches('0');
    let leading = all.len() - digits.len();
    let digits = digits.trim_end_matches('0');
    if digits.is_empty() {
        return format!("{sign}0.0");
    }
    // How many places the first digit that counts is left of the point, less one.
    let distance = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let exponent = exponent.parse().unwrap_or(0) + distance(whole.len()) - distance(leading) - 1;
    sign.to_owned() + &place_digits(digits, exponent)
}

fn infinity(value: f64) -> &'static str {
    if value > 0.0 { "Infinity" } else { "-Infinity" }
}

/// Digits of which the first stands at the power of ten `exponent`.
fn place_digits(digits: &str, exponent: i64) -> String {
    let (first, rest) = digits.split_at(1);
    match usize::try_from(exponent) {
        Ok(exponent @ 0..16) => {
            let padded = format!("{digits:0<width$}", width = exponent + 2);
            let (whole, fraction) = padded.split_at(exponent + 1);
            format!("{whole}.{fraction}")
        }
        Err(_) if exponent >= -4 => {
            let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
            format!("0.{}{digits}", "0".repeat(zeros))
        }
        _ => {
            let point = if rest.is_empty() { "" } else { "." };
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{first}{point}{rest}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_fractions_as_the_reference_does() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (0.0001, "0.0001"),
            (0.000015, "1.5e-05"),
            (5e-324, "5e-324"),
            (-1.7976931348623157e308, "-1.7976931348623157e+308"),
            (1890787759509199.2, "1890787759509199.2"),
            (123456789.123, "123456789.123"),
        ];
        for (value, want) in cases {
            assert_eq!(float_text(value), want);
        }
    }
}
