//! Patterns for names, as shells have them.

/// The longest pattern.
const MAX_PATTERN: usize = 4096;

/// The most names a pattern has.
const MAX_PARTS: usize = 256;

/// A path with patterns for some of its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<GlobComponent>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobComponent {
    /// One name.
    Name(Vec<GlobToken>),
    /// Any number of names.
    Any,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum GlobToken {
    /// This byte.
    Byte(u8),
    /// Any letter.
    Letter,
    /// Any text.
    Text,
    /// One of these letters, or none of them.
    Class { ranges: Vec<(char, char)>, negated: bool },
}

/// Where in a pattern a walk is: several places at once, because `**` can be many names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Positions(Vec<usize>);

impl Pattern {
    /// Reads a pattern; an error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_PATTERN {
            return Err("the pattern is too long");
        }
        if text.starts_with('/') {
            return Err("the pattern is absolute");
        }
        if text.contains('\0') {
            return Err("the pattern holds a NUL byte");
        }
        let mut parts = Vec::new();
        for part in text.split('/').filter(|part| !matches!(*part, "" | ".")) {
            match part {
                ".." => return Err("the pattern leads upwards"),
                // Twice in a row is the same as once.
                "**" if parts.last() == Some(&GlobComponent::Any) => {}
                "**" => parts.push(GlobComponent::Any),
                _ => parts.push(GlobComponent::Name(chunks(part))),
            }
        }
        match parts.len() {
            0 => Err("the pattern is empty"),
            length if length > MAX_PARTS => Err("the pattern has too many names"),
            _ => Ok(Self { parts }),
        }
    }

    /// Where a walk starts.
    pub(super) fn start(&self) -> Positions {
        self.closed(vec![0])
    }

    /// Where a walk is after `name`.
    pub(super) fn step(&self, from: &Positions, name: &[u8]) -> Positions {
        let mut next = Vec::new();
        for position in &from.0 {
            match self.parts.get(*position) {
                // Hidden folders are entered by name only.
                Some(GlobComponent::Any) if !name.starts_with(b".") => next.push(*position),
                Some(GlobComponent::Name(chunks)) if matches_name(chunks, name) => {
                    next.push(position + 1);
                }
                _ => {}
            }
        }
        self.closed(next)
    }

    /// Whether what was walked matches.
    pub(super) fn is_match(&self, at: &Positions) -> bool {
        at.0.contains(&self.parts.len())
    }

    /// Whether something below what was walked can match.
    pub(super) fn goes_on(&self, at: &Positions) -> bool {
        at.0.iter().any(|position| *position < self.parts.len())
    }

    /// `**` can be no name at all.
    fn closed(&self, mut positions: Vec<usize>) -> Positions {
        let mut index = 0;
        while let Some(position) = positions.get(index).copied() {
            if self.parts.get(position) == Some(&GlobComponent::Any)
                && !positions.contains(&(position + 1))
            {
                positions.push(position + 1);
            }
            index += 1;
        }
        positions.sort_unstable();
        positions.dedup();
        Positions(positions)
    }
}

fn chunks(part: &str) -> Vec<GlobToken> {
    let mut chunks = Vec::new();
    let mut rest = part.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '*' if chunks.last() == Some(&GlobToken::Text) => {}
            '*' => chunks.push(GlobToken::Text),
            '?' => chunks.push(GlobToken::Letter),
            '[' => match class(rest.as_str()) {
                Some((chunk, tail)) => {
                    chunks.push(chunk);
                    rest = tail.chars();
                }
                // Without its end it is a letter like any other.
                None => chunks.push(GlobToken::Byte(b'[')),
            },
            '\\' => {
                let escaped = rest.next().unwrap_or('\\');
                push_letter(&mut chunks, escaped);
            }
            _ => push_letter(&mut chunks, letter),
        }
    }
    chunks
}

fn push_letter(chunks: &mut Vec<GlobToken>, letter: char) {
    let mut buffer = [0; 4];
    chunks.extend(letter.encode_utf8(&mut buffer).bytes().map(GlobToken::Byte));
}

/// A class, from behind its `[`, and what follows it.
fn class(text: &str) -> Option<(GlobToken, &str)> {
    let negated = text.starts_with(['!', '^']);
    let body = if negated { &text[1..] } else { text };
    // A `]` in first place is one of the letters.
    let skip = body.chars().next()?.len_utf8();
    let end = skip + body[skip..].find(']')?;
    let letters: Vec<char> = body[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut index = 0;
    while let Some(first) = letters.get(index) {
        match (letters.get(index + 1), letters.get(index + 2)) {
            (Some('-'), Some(last)) => {
                ranges.push((*first, *last));
                index += 3;
            }
            _ => {
                ranges.push((*first, *first));
                index += 1;
            }
        }
    }
    Some((GlobToken::Class { ranges, negated }, &body[end + 1..]))
}

/// Whether a name matches. A name that starts with a dot is matched by a dot only.
fn matches_name(chunks: &[GlobToken], name: &[u8]) -> bool {
    if name.starts_with(b".") && chunks.first() != Some(&GlobToken::Byte(b'.')) {
        return false;
    }
    let (mut chunk, mut at) = (0, 0);
    // Where to go on if this does not work out: the last `*`, and how much of the name it took.
    let mut back: Option<(usize, usize)> = None;
    loop {
        let advanced = match chunks.get(chunk) {
            Some(GlobToken::Text) => {
                back = Some((chunk, at));
                chunk += 1;
                continue;
            }
            Some(one) => one.length_at(&name[at..]),
            None if at == name.len() => return true,
            None => None,
        };
        match (advanced, back) {
            (Some(length), _) => {
                chunk += 1;
                at += length;
            }
            (None, Some((star, taken))) if taken < name.len() => {
                back = Some((star, taken + 1));
                chunk = star + 1;
                at = taken + 1;
            }
            (None, _) => return false,
        }
    }
}

impl GlobToken {
    /// How many bytes of `text` it matches.
    fn length_at(&self, text: &[u8]) -> Option<usize> {
        let first = *text.first()?;
        match self {
            Self::Byte(byte) => (first == *byte).then_some(1),
            Self::Text => None,
            Self::Letter => Some(letter_at(text).map_or(1, char::len_utf8)),
            Self::Class { ranges, negated } => {
                // A byte that is no letter is in no class.
                let letter = letter_at(text);
                let holds = letter.is_some_and(|letter| {
                    ranges.iter().any(|(from, to)| (*from..=*to).contains(&letter))
                });
                (holds != *negated).then(|| letter.map_or(1, char::len_utf8))
            }
        }
    }
}

/// The letter a text starts with, if it is one.
fn letter_at(text: &[u8]) -> Option<char> {
    let most = &text[..text.len().min(4)];
    let valid = match std::str::from_utf8(most) {
        Ok(valid) => valid,
        Err(error) => std::str::from_utf8(&most[..error.valid_up_to()]).ok()?,
    };
    valid.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a whole path matches.
    fn is_match(pattern: &str, path: &str) -> bool {
        let pattern = Pattern::parse(pattern).unwrap();
        let mut at = pattern.start();
        for name in path.split('/') {
            at = pattern.step(&at, name.as_bytes());
        }
        pattern.is_match(&at)
    }

    #[test]
    fn matches_as_shells_do() {
        let cases = [
            ("*.rs", "main.rs", true),
            ("*.rs", "src/main.rs", false),
            ("*.rs", ".rs", false),
            (".*", ".git", true),
            ("**/*.rs", "main.rs", true),
            ("**/*.rs", "a/b/main.rs", true),
            ("**/*.rs", ".git/main.rs", false),
            ("a/**", "a", true),
            ("a/**", "a/b/c", true),
            ("a/**/**/c", "a/c", true),
            ("a/**/c", "a/b", false),
            ("??", "\u{fc}x", true),
            ("??", "x", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[-a]", "-", true),
            ("[\u{e4}-\u{fc}]", "\u{f6}", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("a*b*c", "axxbxxbc", true),
            ("a*b*c", "axxbxx", false),
            ("*", "", true),
        ];
        for (pattern, path, want) in cases {
            assert_eq!(is_match(pattern, path), want, "{pattern:?} on {path:?}");
        }
    }

    #[test]
    fn refuses_patterns_that_leave() {
        for pattern in ["/etc/*", "../x", "a/../b", "", ".", "a\0"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern:?}");
        }
        assert!(Pattern::parse(&"a/".repeat(300)).is_err());
    }

    #[test]
    fn is_quick_where_others_take_for_ever() {
        let pattern = format!("{}b", "a*".repeat(60));
        assert!(!is_match(&pattern, &"a".repeat(250)));
    }
}
