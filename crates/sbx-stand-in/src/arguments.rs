//! Options and words of a command line, as the real program's parser takes them.

use crate::Failure;

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    /// Options with their values; those without one have an empty one.
    options: Vec<(String, String)>,
    /// Words that are no options.
    pub(crate) words: Vec<String>,
    /// What follows `--`.
    pub(crate) after: Option<Vec<String>>,
}

/// The options a verb has: each with all its names, and whether it has a value.
pub(crate) type Known<'a> = &'a [(&'a [&'a str], bool)];

impl Arguments {
    /// Takes a command line apart; after `most` words everything is a word, as of a command.
    pub(crate) fn parse(given: &[String], known: Known<'_>, most: usize) -> Result<Self, Failure> {
        let mut parsed = Self::default();
        let mut given = given.iter();
        while let Some(word) = given.next() {
            if parsed.words.len() >= most {
                parsed.words.push(word.clone());
                continue;
            }
            if word == "--" {
                parsed.after = Some(given.by_ref().cloned().collect());
                break;
            }
            if !word.starts_with('-') || word == "-" {
                parsed.words.push(word.clone());
                continue;
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let found = known.iter().find(|(names, _)| names.contains(&name));
            let Some((names, has_value)) = found else {
                return Err(Failure(1, format!("unknown flag: {name}")));
            };
            let value = match (has_value, value) {
                (true, Some(value)) => value,
                (true, None) => given
                    .next()
                    .cloned()
                    .ok_or_else(|| Failure(1, format!("flag needs an argument: {name}")))?,
                (false, value) => value.unwrap_or_default(),
            };
            let name = names.first().copied().unwrap_or_default();
            parsed.options.push((name.to_owned(), value));
        }
        Ok(parsed)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.options.iter().any(|(option, _)| option == name)
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut named = self.options.iter().filter(|(option, _)| option == name);
        named.next_back().map(|(_, value)| value.as_str())
    }

    pub(crate) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.options.iter().filter(move |(option, _)| option == name);
        named.map(|(_, value)| value.as_str())
    }

    /// The word at this place, or what is missing.
    pub(crate) fn word(&self, at: usize, what: &str) -> Result<&str, Failure> {
        let word = self.words.get(at).map(String::as_str);
        word.ok_or_else(|| Failure(1, format!("{what} is missing")))
    }
}
