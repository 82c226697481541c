//! JSON with positions.

use std::rc::Rc;

use serde_json::Value;

use super::node::{Content, DocumentNode, Pair, ParseFailure, Position};

pub(super) fn parse(text: &str) -> Result<DocumentNode, ParseFailure> {
    // The parser everybody trusts decides what is JSON and how deep; the scan below only finds
    // where things are, and can rely on that.
    if let Err(error) = serde_json::from_str::<Value>(text) {
        let position = Position::LineColumn(error.line().max(1), error.column().max(1));
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or_default();
        return Err(ParseFailure::at(position, words));
    }
    Scan { text, at: 0 }.value()
}

struct Scan<'t> {
    text: &'t str,
    at: usize,
}

impl Scan<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// The next byte that is not blank.
    fn peek(&mut self) -> Option<u8> {
        let blank = self.rest().bytes().take_while(u8::is_ascii_whitespace).count();
        self.at += blank;
        self.rest().bytes().next()
    }

    /// Steps over one of `bytes`, if it is next.
    fn eat(&mut self, bytes: &[u8]) -> bool {
        let found = self.peek().is_some_and(|byte| bytes.contains(&byte));
        self.at += usize::from(found);
        found
    }

    fn value(&mut self) -> Result<DocumentNode, ParseFailure> {
        self.peek();
        let position = Position::Byte(self.at);
        if self.eat(b"{") {
            let mut pairs = Vec::new();
            while !self.eat(b"}") {
                self.eat(b",");
                self.peek();
                let position = Position::Byte(self.at);
                let key = match self.scalar()? {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                self.eat(b":");
                pairs.push(Pair { key, position, value: Rc::new(self.value()?) });
            }
            return DocumentNode::new(position, Content::Map(pairs));
        }
        if self.eat(b"[") {
            let mut items = Vec::new();
            while !self.eat(b"]") {
                self.eat(b",");
                items.push(Rc::new(self.value()?));
            }
            return DocumentNode::new(position, Content::List(items));
        }
        Ok(DocumentNode::scalar(position, self.scalar()?))
    }

    fn scalar(&mut self) -> Result<Value, ParseFailure> {
        let position = Position::Byte(self.at);
        let length = if self.peek() == Some(b'"') {
            text_length(self.rest())
        } else {
            let ends = |byte: u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            self.rest().bytes().take_while(|byte| !ends(*byte)).count()
        };
        let scalar = serde_json::from_str(&self.rest()[..length]);
        self.at += length;
        scalar.map_err(|error| ParseFailure::at(position, error.to_string()))
    }
}

/// How long the text in quotes at the start is, with its quotes.
fn text_length(text: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}
