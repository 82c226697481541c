//! Licences of everything that is linked.

use serde_json::Value;

use super::edges::text;
use crate::shell::{Outcome, say};

/// Licences that ask for nothing but their notice.
const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    // Of the list of certificate authorities, which is data.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6",
];

/// Fails on a package none of whose licences is allowed.
pub(crate) fn check(metadata: &Value) -> Outcome {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let wrong: Vec<_> = packages
        .iter()
        .filter(|package| !is_allowed(text(package, "license")))
        .map(|package| format!("{} ({:?})", text(package, "name"), text(package, "license")))
        .collect();
    if wrong.is_empty() {
        say(&format!("{} packages, all under permissive licences", packages.len()));
        return Ok(());
    }
    Err(format!("not under an allowed licence: {}", wrong.join(", ")).into())
}

/// Whether a licence expression can be satisfied: all parts of an `AND`, any part of an `OR`. Nested
/// alternatives are taken as written, outermost first.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let parts = split_top(&expression, " AND ");
    if parts.len() > 1 {
        return parts.iter().all(|part| is_allowed(part));
    }
    let parts = split_top(&expression, " OR ");
    if parts.len() > 1 {
        return parts.iter().any(|part| is_allowed(part));
    }
    let inner = expression.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    match inner {
        Some(inner) => is_allowed(inner),
        None => ALLOWED.contains(&expression.trim()),
    }
}

/// Splits at `word` where it stands outside parentheses.
fn split_top(text: &str, word: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if depth == 0 && rest.starts_with(word) {
            parts.push(String::new());
            rest = &rest[word.len()..];
            continue;
        }
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(letter);
        }
        rest = &rest[letter.len_utf8()..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_licence_expressions() {
        let cases = [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND LGPL-3.0", false),
            ("GPL-3.0-only", false),
            ("", false),
        ];
        for (expression, want) in cases {
            assert_eq!(is_allowed(expression), want, "{expression}");
        }
    }
}
