//! Numbers and booleans, with everything the reference takes for one.

use serde_json::{Number, Value};

use super::input::Input;
use super::invalid::{Checked, Invalid};

/// Integers are unbounded in the reference. Ours end here, far beyond anything that means
/// something, so that shifting one by a few bits cannot overflow.
const MAX_INT: i128 = 1 << 120;

/// A number as the reference's JSON reader would give it.
enum Read {
    Int(i128),
    /// Too large for us.
    Huge,
    Float(f64),
}

fn classify(number: &Number) -> Read {
    let text = number.as_str();
    if text.contains(['.', 'e', 'E']) {
        return Read::Float(text.parse().unwrap_or(f64::NAN));
    }
    match text.parse::<i128>() {
        Ok(int) if int.abs() <= MAX_INT => Read::Int(int),
        _ => Read::Huge,
    }
}

/// Whether a JSON number is a whole number rather than a floating point one.
pub(crate) fn is_int(number: &Number) -> bool {
    !matches!(classify(number), Read::Float(_))
}

fn too_large(input: Input<'_>) -> Invalid {
    let message = "Unable to parse input string as an integer, exceeded maximum size";
    input.field_error("int_parsing_size", message)
}

pub(super) fn int(input: Input<'_>) -> Checked<i128> {
    match input.value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Number(number) => match classify(number) {
            Read::Int(int) => Ok(int),
            Read::Huge => Err(too_large(input)),
            Read::Float(float) => int_of_float(input, float),
        },
        Value::String(text) => int_of_text(input, text),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            Err(input.field_error("int_type", "Input should be a valid integer"))
        }
    }
}

/// The whole number a float is, if it lies strictly inside 64 bits.
fn whole(float: f64) -> Option<i128> {
    // 2^63; exact as a float.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if float.fract() != 0.0 || float.abs() >= LIMIT {
        return None;
    }
    format!("{float:.0}").parse().ok()
}

fn int_of_float(input: Input<'_>, float: f64) -> Checked<i128> {
    if !float.is_finite() {
        return Err(input.field_error("finite_number", "Input should be a finite number"));
    }
    if float.fract() != 0.0 {
        let message = "Input should be a valid integer, got a number with a fractional part";
        return Err(input.field_error("int_from_float", message));
    }
    whole(float).ok_or_else(|| too_large(input))
}

fn int_of_text(input: Input<'_>, text: &str) -> Checked<i128> {
    let Some(digits) = plain_digits(text.trim()) else {
        let message = "Input should be a valid integer, unable to parse string as an integer";
        return Err(input.field_error("int_parsing", message));
    };
    match digits.parse::<i128>() {
        Ok(int) if int.abs() <= MAX_INT => Ok(int),
        _ => Err(too_large(input)),
    }
}

/// `[+-]?digits(_digits)*(.0+)?` without its underscores and zeros.
fn plain_digits(text: &str) -> Option<String> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    if fraction.is_some_and(|zeros| zeros.is_empty() || zeros.bytes().any(|byte| byte != b'0')) {
        return None;
    }
    let unsigned = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    let grouped = unsigned
        .split('_')
        .all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    grouped.then(|| whole.replace('_', ""))
}

pub(super) fn float(input: Input<'_>) -> Checked<f64> {
    let refused = || input.field_error("float_type", "Input should be a valid number");
    match input.value {
        Value::Bool(flag) => Ok(if *flag { 1.0 } else { 0.0 }),
        Value::Number(number) => match classify(number) {
            Read::Float(float) => Ok(float),
            // An integer too large for a float is refused, not turned into infinity.
            Read::Int(_) | Read::Huge => number
                .as_str()
                .parse()
                .ok()
                .filter(|float: &f64| float.is_finite())
                .ok_or_else(refused),
        },
        Value::String(text) => float_of_text(text.trim()).ok_or_else(|| {
            let message = "Input should be a valid number, unable to parse string as a number";
            input.field_error("float_parsing", message)
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => Err(refused()),
    }
}

fn float_of_text(text: &str) -> Option<f64> {
    if !text.contains('_') {
        return text.parse().ok();
    }
    // An underscore stands between two digits, or the text is no number.
    let bytes = text.as_bytes();
    let between_digits = |at: usize| {
        let digit =
            |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
        digit(at.checked_sub(1)) && digit(at.checked_add(1))
    };
    let placed = text.match_indices('_').all(|(at, _)| between_digits(at));
    placed.then(|| text.replace('_', "").parse().ok()).flatten()
}

const TRUE_WORDS: [&str; 6] = ["1", "on", "t", "true", "y", "yes"];
const FALSE_WORDS: [&str; 6] = ["0", "off", "f", "false", "n", "no"];

pub(super) fn boolean(input: Input<'_>) -> Checked<bool> {
    let not_one = || input.field_error("bool_type", "Input should be a valid boolean");
    let unclear = || {
        let message = "Input should be a valid boolean, unable to interpret input";
        input.field_error("bool_parsing", message)
    };
    let of_int = |int: i128| match int {
        0 => Ok(false),
        1 => Ok(true),
        other if i64::try_from(other).is_ok() => Err(unclear()),
        _ => Err(not_one()),
    };
    match input.value {
        Value::Bool(flag) => Ok(*flag),
        Value::Number(number) => match classify(number) {
            Read::Int(int) => of_int(int),
            Read::Huge => Err(not_one()),
            Read::Float(float) => whole(float).map_or_else(|| Err(not_one()), of_int),
        },
        Value::String(text) => {
            let text = text.to_ascii_lowercase();
            if TRUE_WORDS.contains(&text.as_str()) {
                Ok(true)
            } else if FALSE_WORDS.contains(&text.as_str()) {
                Ok(false)
            } else {
                Err(unclear())
            }
        }
        Value::Null | Value::Array(_) | Value::Object(_) => Err(not_one()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::read;

    fn tag<T: std::fmt::Debug>(result: crate::Result<T>) -> String {
        let error = result.unwrap_err();
        error.context()["errors"][0]["type"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn takes_for_a_whole_number_what_the_reference_takes() {
        let cases = [
            (json!(7), 7),
            (json!(true), 1),
            (json!(7.0), 7),
            (json!(-0.0), 0),
            (json!(1e18), 1_000_000_000_000_000_000),
            (json!("7"), 7),
            (json!(" +7\n"), 7),
            (json!("\u{a0}-007"), -7),
            (json!("7_0"), 70),
            (json!("1_0.00"), 10),
            (json!("999999999999999999999999999999"), 999_999_999_999_999_999_999_999_999_999),
        ];
        for (value, want) in cases {
            assert_eq!(read::<i128>(&value).unwrap(), want, "value {value}");
        }
    }

    #[test]
    fn refuses_other_numbers_with_the_reference_s_reasons() {
        let cases = [
            (json!(7.5), "int_from_float"),
            (json!(1e19), "int_parsing_size"),
            (json!("9".repeat(5000)), "int_parsing_size"),
            (json!(null), "int_type"),
            (json!([]), "int_type"),
            (json!("7."), "int_parsing"),
            (json!(".0"), "int_parsing"),
            (json!("7.5"), "int_parsing"),
            (json!("1.0_0"), "int_parsing"),
            (json!("_7"), "int_parsing"),
            (json!("7__0"), "int_parsing"),
            (json!("- 7"), "int_parsing"),
            (json!("0x7"), "int_parsing"),
            (json!("٧"), "int_parsing"),
            (json!("\u{1c}7"), "int_parsing"),
            (json!(""), "int_parsing"),
        ];
        for (value, want) in cases {
            assert_eq!(tag(read::<i128>(&value)), want, "value {value}");
        }
    }

    #[test]
    fn takes_for_a_flag_what_the_reference_takes() {
        for value in [json!(true), json!(1), json!(1.0), json!("YES"), json!("t"), json!("on")] {
            assert!(read::<bool>(&value).unwrap(), "value {value}");
        }
        for value in [json!(false), json!(0), json!(-0.0), json!("n"), json!("oFF"), json!("0")] {
            assert!(!read::<bool>(&value).unwrap(), "value {value}");
        }
        let refused = [
            (json!(2), "bool_parsing"),
            (json!(2.0), "bool_parsing"),
            (json!(" yes"), "bool_parsing"),
            (json!("1.0"), "bool_parsing"),
            (json!(0.5), "bool_type"),
            (json!(null), "bool_type"),
            (serde_json::from_str("1000000000000000000000").unwrap(), "bool_type"),
        ];
        for (value, want) in refused {
            assert_eq!(tag(read::<bool>(&value)), want, "value {value}");
        }
    }

    #[test]
    fn takes_for_a_number_what_the_reference_takes() {
        let cases =
            [(json!(7), 7.0), (json!(true), 1.0), (json!(" 1_0.5_0"), 10.5), (json!("1e3"), 1e3)];
        for (value, want) in cases {
            assert_eq!(read::<f64>(&value).unwrap().to_bits(), f64::to_bits(want), "value {value}");
        }
        assert!(read::<f64>(&json!("-Infinity")).unwrap().is_infinite());
        let huge = serde_json::from_str(&"9".repeat(400)).unwrap();
        let refused =
            [(json!("_1"), "float_parsing"), (json!([]), "float_type"), (huge, "float_type")];
        for (value, want) in refused {
            assert_eq!(tag(read::<f64>(&value)), want, "value {value}");
        }
    }
}
