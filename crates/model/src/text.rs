//! How the reference's language cuts text into lines and words.
//!
//! It knows more line ends and more blanks than Rust's `str::lines` and `char::is_whitespace`, and
//! counts, parsed listings and patches depend on the difference.

/// Whether `c` ends a line.
fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// Whether `c` is a blank between words.
#[must_use]
pub fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// The lines of `text` without their ends; a final line end starts no further line.
///
/// ```
/// let lines: Vec<_> = bastide_model::text::split_lines("a\r\nb\u{2028}c\n").collect();
/// assert_eq!(lines, ["a", "b", "c"]);
/// ```
pub fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(end) = rest.find(ends_line) else { return Some(std::mem::take(&mut rest)) };
        let (line, tail) = rest.split_at(end);
        let width = match tail.strip_prefix("\r\n") {
            Some(_) => 2,
            None => tail.chars().next().map_or(0, char::len_utf8),
        };
        rest = &tail[width..];
        Some(line)
    })
}

/// `text` without blanks at both ends.
#[must_use]
pub fn trim(text: &str) -> &str {
    text.trim_matches(is_blank)
}

/// The words of `text`, at most `count` of them: the last keeps its inner and trailing blanks.
///
/// ```
/// let words = bastide_model::text::split_words("  a  b c  d ", 3);
/// assert_eq!(words, ["a", "b", "c  d "]);
/// ```
#[must_use]
pub fn split_words(text: &str, count: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_blank);
    while !rest.is_empty() {
        if words.len() + 1 == count {
            words.push(rest);
            break;
        }
        let (word, tail) = rest.split_at(rest.find(is_blank).unwrap_or(rest.len()));
        words.push(word);
        rest = tail.trim_start_matches(is_blank);
    }
    words
}

/// Reads a whole number as the reference's language does: blanks around it, a sign, and single
/// underscores between digits are fine.
///
/// ```
/// use bastide_model::text::parse_integer;
///
/// assert_eq!(parse_integer(" +1_000 "), Some(1000));
/// assert_eq!(parse_integer("1__0"), None);
/// ```
#[must_use]
pub fn parse_integer(text: &str) -> Option<i128> {
    let text = trim(text);
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let groups: Vec<&str> = digits.split('_').collect();
    let digits_only = |group: &&str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    if !groups.iter().all(digits_only) {
        return None;
    }
    format!("{sign}{}", groups.concat()).parse().ok()
}

/// `text` as one word for a shell.
///
/// ```
/// use bastide_model::text::shell_quote;
///
/// assert_eq!(shell_quote("/work/a.txt"), "/work/a.txt");
/// assert_eq!(shell_quote("it's"), r#"'it'"'"'s'"#);
/// ```
#[must_use]
pub fn shell_quote(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    match !text.is_empty() && text.bytes().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r#"'"'"'"#)),
    }
}
