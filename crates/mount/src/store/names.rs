//! Keys of a store as names of files.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All that is not a letter, a digit or one of the four signs that mean nothing in an address (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The same of a path, whose slashes stay.
const RESERVED_IN_PATHS: &AsciiSet = &RESERVED.remove(b'/');

/// The longest key any of the stores takes.
pub(crate) const MAX_KEY: usize = 1024;
/// The longest name Linux shows.
const MAX_NAME: usize = 255;

/// The name in a folder that a key stands for. Whatever is not directly in it, and whatever no file
/// can be called, has none.
pub(crate) fn relative_name<'a>(folder: &str, key: &'a str) -> Option<&'a str> {
    let name = key.strip_prefix(folder)?;
    is_name(name).then_some(name)
}

/// Whether a file can be called this.
fn is_name(name: &str) -> bool {
    let reserved = matches!(name, "" | "." | "..");
    !reserved && name.len() <= MAX_NAME && !name.contains(['/', '\0'])
}

/// A key as part of a URL; slashes stay.
pub(super) fn encode_key(key: &str) -> String {
    utf8_percent_encode(key, RESERVED_IN_PATHS).to_string()
}

/// A value of a query.
pub(super) fn encode_value(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

/// The address of a page of a listing: of everything below a prefix (`flat`), or of one level. Values that are not given
/// are left out.
pub(super) fn listing_url(start: String, flat: bool, values: [(&str, Option<&str>); 2]) -> String {
    let mut url = start;
    if !flat {
        url.push_str("&delimiter=%2F");
    }
    for (name, value) in values {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = write!(url, "&{name}={}", encode_value(value));
        }
    }
    url
}

/// Undoes the encoding of a listing; what is not text has no name.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                let digits = std::str::from_utf8(&digits).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
            }
            // A form encodes spaces so.
            b'+' => out.push(b' '),
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leaves_out_what_no_file_can_be_called() {
        let long = "x".repeat(256);
        for key in
            ["d/", "d/.", "d/..", "d//x", "d/a/b", "d/a\0b", "e/x", "d", &format!("d/{long}")]
        {
            assert_eq!(relative_name("d/", key), None, "{key:?}");
        }
    }

    #[test]
    fn keeps_odd_names() {
        for name in
            ["a b", " lead", "trail ", "a\nb", "%41", "...", "Ä", "a*?b", "~", "-rf", "\u{1}"]
        {
            assert_eq!(relative_name("d/", &format!("d/{name}")), Some(name));
        }
    }

    proptest! {
        #[test]
        fn decodes_what_it_encodes(text in ".{0,40}") {
            prop_assert_eq!(decode(&encode_value(&text)), Some(text.clone()));
            prop_assert_eq!(decode(&encode_key(&text)), Some(text));
        }
    }
}
