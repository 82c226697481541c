//! What all formats have in common: values with positions.

use std::collections::HashSet;
use std::rc::Rc;

use serde_json::{Map, Value};

use crate::ErrorKind;
use crate::lax::PathSegment;

/// Deeper files are refused, as every reader of JSON refuses them.
pub(super) const MAX_DEPTH: usize = 128;

/// How many values a file may grow to when its aliases are followed, and how much text.
const MAX_VALUES: usize = 1_000_000;
const MAX_TEXT: usize = 64 * 1024 * 1024;

/// Where something is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    /// Counted in bytes from the start.
    Byte(usize),
    /// Both from 1, the column in characters.
    LineColumn(usize, usize),
}

impl Position {
    /// The line and the column, both from 1.
    pub(super) fn line_and_column(self, text: &str) -> (usize, usize) {
        match self {
            Self::LineColumn(line, column) => (line, column),
            Self::Byte(at) => {
                let before = text.get(..at.min(text.len())).unwrap_or(text);
                let line_start = before.rfind('\n').map_or(0, |end| end + 1);
                let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
                (line, before[line_start..].chars().count() + 1)
            }
        }
    }
}

/// Why a file cannot be understood.
#[derive(Debug)]
pub(super) struct ParseFailure {
    pub(super) position: Position,
    pub(super) kind: ErrorKind,
    pub(super) message: String,
}

impl ParseFailure {
    pub(super) fn at(position: Position, message: impl Into<String>) -> Self {
        Self { position, kind: ErrorKind::InvalidInput, message: message.into() }
    }

    fn limit(position: Position, message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::LimitExceeded, ..Self::at(position, message) }
    }
}

/// A value and where it is. Aliases share what they stand for.
#[derive(Debug, Clone)]
pub(super) struct DocumentNode {
    pub(super) position: Position,
    pub(super) content: Content,
    height: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar(Value),
    List(Vec<Rc<DocumentNode>>),
    Map(Vec<Pair>),
}

/// A key, where it is, and its value.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) position: Position,
    pub(super) value: Rc<DocumentNode>,
}

impl DocumentNode {
    pub(super) fn new(position: Position, content: Content) -> Result<Self, ParseFailure> {
        let below = match &content {
            Content::Scalar(_) => 0,
            Content::List(items) => items.iter().map(|item| item.height).max().unwrap_or(0),
            Content::Map(pairs) => pairs.iter().map(|pair| pair.value.height).max().unwrap_or(0),
        };
        if below >= MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(ParseFailure::limit(position, message));
        }
        Ok(Self { position, content, height: below + 1 })
    }

    pub(super) fn scalar(position: Position, value: Value) -> Self {
        Self { position, content: Content::Scalar(value), height: 1 }
    }

    /// The value without positions, with every alias followed.
    pub(super) fn to_value(&self) -> Result<Value, ParseFailure> {
        self.expand(&mut Budget { values: MAX_VALUES, text: MAX_TEXT })
    }

    /// Recursion ends: no node is higher than [`MAX_DEPTH`].
    fn expand(&self, budget: &mut Budget) -> Result<Value, ParseFailure> {
        let text = match &self.content {
            Content::Scalar(Value::String(text)) => text.len(),
            _ => 0,
        };
        budget.spend(self.position, text)?;
        match &self.content {
            Content::Scalar(value) => Ok(value.clone()),
            Content::List(items) => items.iter().map(|item| item.expand(budget)).collect(),
            Content::Map(pairs) => {
                let mut map = Map::new();
                let mut seen = HashSet::new();
                for pair in pairs {
                    if !seen.insert(pair.key.as_str()) {
                        let message = format!("the key `{}` is there twice", pair.key);
                        return Err(ParseFailure::at(pair.position, message));
                    }
                    budget.spend(pair.position, pair.key.len())?;
                    map.insert(pair.key.clone(), pair.value.expand(budget)?);
                }
                Ok(Value::Object(map))
            }
        }
    }

    /// Where the last key or item of `path` is; where it does not exist, what should have it.
    pub(super) fn find(&self, path: &[PathSegment]) -> Position {
        let mut position = self.position;
        let mut node = self;
        for step in path {
            let next = match (&node.content, step) {
                (Content::List(items), PathSegment::Index(index)) => {
                    items.get(*index).map(|item| (item.position, item))
                }
                (Content::Map(pairs), PathSegment::Key(key)) => pairs
                    .iter()
                    .find(|pair| pair.key == *key)
                    .map(|pair| (pair.position, &pair.value)),
                _ => None,
            };
            let Some((found, value)) = next else { break };
            position = found;
            node = value;
        }
        position
    }
}

struct Budget {
    values: usize,
    text: usize,
}

impl Budget {
    fn spend(&mut self, position: Position, text: usize) -> Result<(), ParseFailure> {
        let values = self.values.checked_sub(1);
        let text = self.text.checked_sub(text);
        let (Some(values), Some(text)) = (values, text) else {
            return Err(ParseFailure::limit(position, "the file grows too large"));
        };
        (self.values, self.text) = (values, text);
        Ok(())
    }
}
