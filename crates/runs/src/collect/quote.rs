//! Paths in patches, as git writes them.

/// A path with what stands before it, quoted if it needs to be.
pub(super) fn quoted(prefix: &str, path: &[u8]) -> String {
    let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) && *byte != b'"' && *byte != b'\\';
    if path.iter().all(is_plain) {
        return format!("{prefix}{}", String::from_utf8_lossy(path));
    }
    let mut text = format!("\"{prefix}");
    for &byte in path {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            byte if is_plain(&byte) => text.push(char::from(byte)),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

/// The same behind `---` and `+++`, where a name with spaces ends with a tab.
pub(super) fn ended(prefix: &str, path: &[u8]) -> String {
    let name = quoted(prefix, path);
    match name.contains(' ') && !name.starts_with('"') {
        true => name + "\t",
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_what_git_quotes() {
        assert_eq!(quoted("a/", b"plain file"), "a/plain file");
        assert_eq!(quoted("a/", b"new\nline"), "\"a/new\\nline\"");
        assert_eq!(quoted("", "é\"\\\u{7}".as_bytes()), "\"\\303\\251\\\"\\\\\\007\"");
        assert_eq!(ended("b/", b"x y"), "b/x y\t");
        assert_eq!(ended("b/", b"x\n y"), "\"b/x\\n y\"");
    }
}
