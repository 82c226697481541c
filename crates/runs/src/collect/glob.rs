//! Patterns of ignore files, as git matches them, in time that no pattern can blow up.

/// Whether a pattern matches a whole path. `*` and `?` stop at slashes, `**` between slashes does not.
///
/// The table of what is matched so far is kept for one position of the text at a time, so that the
/// cost is the product of both lengths, whatever stars are in the pattern.
pub(crate) fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let tokens = tokens(pattern);
    let mut now = vec![false; tokens.len() + 1];
    now[0] = true;
    pass_stars(&tokens, &mut now, None);
    let mut before = None;
    for &byte in path {
        let mut next = vec![false; tokens.len() + 1];
        for (at, token) in tokens.iter().enumerate() {
            if !now[at] {
                continue;
            }
            match token {
                Token::AnyPath => next[at] = true,
                Token::Folders => next[at] = true,
                Token::Star if byte != b'/' => next[at] = true,
                Token::One if byte != b'/' => next[at + 1] = true,
                Token::Byte(want) if *want == byte => next[at + 1] = true,
                Token::Class(class) if byte != b'/' && class.has(byte) => next[at + 1] = true,
                _ => {}
            }
        }
        before = Some(byte).or(before);
        pass_stars(&tokens, &mut next, before);
        if !next.iter().any(|alive| *alive) {
            return false;
        }
        now = next;
    }
    now[tokens.len()]
}

/// Lets stars match nothing. `Folders` (`**/`) ends at the beginning and after a slash only.
fn pass_stars(tokens: &[Token], alive: &mut [bool], before: Option<u8>) {
    for (at, token) in tokens.iter().enumerate() {
        let passes = match token {
            Token::Star | Token::AnyPath => true,
            Token::Folders => before.is_none_or(|byte| byte == b'/'),
            _ => false,
        };
        if alive[at] && passes {
            alive[at + 1] = true;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Star,
    /// `**` at the end
    AnyPath,
    /// `**/`
    Folders,
    Class(Class),
}

#[derive(Debug, PartialEq, Eq)]
struct Class {
    negated: bool,
    ranges: Vec<(u8, u8)>,
}

impl Class {
    fn has(&self, byte: u8) -> bool {
        self.ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != self.negated
    }
}

fn tokens(pattern: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some((&first, after)) = rest.split_first() {
        let starts_part = matches!(tokens.last(), None | Some(Token::Byte(b'/') | Token::Folders));
        rest = match first {
            b'*' if starts_part && after == b"*" => {
                tokens.push(Token::AnyPath);
                b""
            }
            b'*' if starts_part && after.starts_with(b"*/") => {
                tokens.push(Token::Folders);
                &after[2..]
            }
            b'*' => {
                if tokens.last() != Some(&Token::Star) {
                    tokens.push(Token::Star);
                }
                after
            }
            b'?' => {
                tokens.push(Token::One);
                after
            }
            b'[' => match class(after) {
                Some((class, after)) => {
                    tokens.push(Token::Class(class));
                    after
                }
                // Git matches nothing with a class that does not end.
                None => {
                    tokens.push(Token::Class(Class { negated: false, ranges: Vec::new() }));
                    b""
                }
            },
            b'\\' => match after.split_first() {
                Some((&escaped, after)) => {
                    tokens.push(Token::Byte(escaped));
                    after
                }
                None => {
                    tokens.push(Token::Byte(b'\\'));
                    after
                }
            },
            byte => {
                tokens.push(Token::Byte(byte));
                after
            }
        };
    }
    tokens
}

/// What is between brackets, and what follows them.
fn class(inner: &[u8]) -> Option<(Class, &[u8])> {
    let (negated, mut rest) = match inner.split_first()? {
        (b'!' | b'^', after) => (true, after),
        _ => (false, inner),
    };
    let mut ranges = Vec::new();
    let mut is_first = true;
    loop {
        let (&byte, after) = rest.split_first()?;
        if byte == b']' && !is_first {
            return Some((Class { negated, ranges }, after));
        }
        is_first = false;
        if let Some((named, after)) = named_class(rest) {
            ranges.extend_from_slice(named);
            rest = after;
            continue;
        }
        let (low, after) = literal(rest)?;
        match after {
            [b'-', next, ..] if *next != b']' => {
                let (high, after) = literal(&after[1..])?;
                ranges.push((low, high));
                rest = after;
            }
            _ => {
                ranges.push((low, low));
                rest = after;
            }
        }
    }
}

fn literal(rest: &[u8]) -> Option<(u8, &[u8])> {
    match rest.split_first()? {
        (b'\\', after) => after.split_first().map(|(byte, after)| (*byte, after)),
        (byte, after) => Some((*byte, after)),
    }
}

/// The bytes of a class, as ranges.
type Ranges = &'static [(u8, u8)];

fn named_class(rest: &[u8]) -> Option<(Ranges, &[u8])> {
    const NAMED: [(&[u8], Ranges); 8] = [
        (b"[:alpha:]", &[(b'a', b'z'), (b'A', b'Z')]),
        (b"[:digit:]", &[(b'0', b'9')]),
        (b"[:alnum:]", &[(b'a', b'z'), (b'A', b'Z'), (b'0', b'9')]),
        (b"[:upper:]", &[(b'A', b'Z')]),
        (b"[:lower:]", &[(b'a', b'z')]),
        (b"[:space:]", &[(b' ', b' '), (9, 13)]),
        (b"[:punct:]", &[(33, 47), (58, 64), (91, 96), (123, 126)]),
        (b"[:xdigit:]", &[(b'0', b'9'), (b'a', b'f'), (b'A', b'F')]),
    ];
    NAMED.iter().find_map(|(name, ranges)| Some((*ranges, rest.strip_prefix(*name)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_git_does() {
        let cases = [
            ("a", "a", true),
            ("a", "b", false),
            ("*.o", "x.o", true),
            ("*.o", "d/x.o", false),
            ("d/*", "d/x", true),
            ("d/*", "d/x/y", false),
            ("**/x", "x", true),
            ("**/x", "a/b/x", true),
            ("**/x", "ax", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/xb", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[[:digit:]]", "7", true),
            ("[a", "[a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("?", "/", false),
            ("a**b", "axxb", true),
            ("a**b", "a/b", false),
        ];
        for (pattern, path, want) in cases {
            let got = matches(pattern.as_bytes(), path.as_bytes());
            assert_eq!(got, want, "{pattern} {path}");
        }
    }

    #[test]
    fn is_not_blown_up_by_stars() {
        let pattern = "*a".repeat(60) + "b";
        let path = "a".repeat(4000);
        assert!(!matches(pattern.as_bytes(), path.as_bytes()));
    }
}
