//! Text of a sandbox on somebody's terminal: whatever would act there is shown instead.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal does something else with a character than show it: controls (C0, DEL and C1, with
/// which escape sequences begin), what changes the direction of text around it, and the separators of
/// lines and paragraphs.
fn acts(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with everything escaped that a terminal would act on. It is one line.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' | '\r' | '\t' => shown.extend(letter.escape_default()),
            _ if acts(letter) && letter.is_ascii() => {
                // Writing to a string does not fail.
                let _ = write!(shown, "\\x{:02x}", u32::from(letter));
            }
            _ if acts(letter) => shown.extend(letter.escape_unicode()),
            _ => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// The same for one or more lines of JSON, which stay the JSON they were. Outside of its strings there is
/// nothing to escape, and in them JSON has an escape of its own for every such character.
pub(crate) fn escaped_json(json: &str) -> Cow<'_, str> {
    let acts = |letter: char| acts(letter) && letter != '\n';
    if !json.contains(acts) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        if acts(letter) {
            // Writing to a string does not fail. None of them is beyond the basic plane.
            let _ = write!(shown, "\\u{:04x}", u32::from(letter));
        } else {
            shown.push(letter);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn shows_what_a_terminal_would_act_on() {
        let cases = [
            ("plain, with ünicode and \\", "plain, with ünicode and \\"),
            ("a\u{1b}]0;title\u{7}b", "a\\x1b]0;title\\x07b"),
            ("one\r\ntwo\tthree", "one\\r\\ntwo\\tthree"),
            ("\u{7f}\u{9b}31m", "\\x7f\\u{9b}31m"),
            ("\u{202e}txt.exe\u{2066}\u{200f}", "\\u{202e}txt.exe\\u{2066}\\u{200f}"),
            ("\u{2028}\u{2029}\u{61c}", "\\u{2028}\\u{2029}\\u{61c}"),
        ];
        for (text, want) in cases {
            assert_eq!(escaped(text), want, "{text:?}");
        }
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        assert!(!escaped(&all).contains(acts));
    }

    #[test]
    fn leaves_json_what_it_is() {
        let all: String = (0..0x3000).filter_map(char::from_u32).collect();
        let value = json!({ "text": all, "list": [1, "\u{9b}2J"] });
        let text = value.to_string();
        let shown = escaped_json(&text);
        assert!(!shown.contains(acts));
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
    }
}
