//! YAML 1.2 with positions.

use std::collections::HashMap;
use std::mem;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

use super::node::{Content, DocumentNode, MAX_DEPTH, Pair, ParseFailure, Position};

pub(super) fn parse(text: &str) -> Result<DocumentNode, ParseFailure> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let marker = error.marker();
            let position = Position::LineColumn(marker.line(), marker.col() + 1);
            ParseFailure::at(position, error.info().to_owned())
        })?;
        builder.take(event, span)?;
    }
    // A file of nothing but comments asks for nothing, as in TOML.
    let nothing = || DocumentNode::scalar(Position::LineColumn(1, 1), Value::Object(Map::new()));
    Ok(match builder.document {
        None => nothing(),
        Some(node) if matches!(&node.content, Content::Scalar(Value::Null)) => nothing(),
        Some(node) => Rc::unwrap_or_clone(node),
    })
}

/// Puts events together; what is open is on a stack, so that nothing recurses.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    /// What anchors stand for, once it is complete.
    anchors: HashMap<usize, Rc<DocumentNode>>,
    document: Option<Rc<DocumentNode>>,
}

/// A collection that is not complete.
struct Open {
    position: Position,
    anchor: usize,
    content: Content,
    /// The key whose value comes next, in a map.
    key: Option<(String, Position)>,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), ParseFailure> {
        let position = Position::LineColumn(span.start.line(), span.start.col() + 1);
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.document.is_some() => {
                Err(ParseFailure::at(position, "the file holds more than one document"))
            }
            Event::DocumentStart(_) => Ok(()),
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(position, &text, style, tag.as_deref())?;
                self.add(DocumentNode::scalar(position, value), Some(text.into_owned()), anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                collection_tag(position, tag.as_deref(), "seq")?;
                self.start(position, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                collection_tag(position, tag.as_deref(), "map")?;
                self.start(position, anchor, Content::Map(Vec::new()))
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(done) = self.open.pop() else {
                    return Err(ParseFailure::at(position, "something ends that did not begin"));
                };
                self.add(DocumentNode::new(done.position, done.content)?, None, done.anchor)
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    let message = "an alias must not stand inside what it stands for";
                    return Err(ParseFailure::at(position, message));
                };
                self.place(node, None)
            }
        }
    }

    fn start(
        &mut self,
        position: Position,
        anchor: usize,
        content: Content,
    ) -> Result<(), ParseFailure> {
        if self.open.len() >= MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(ParseFailure::at(position, message));
        }
        self.open.push(Open { position, anchor, content, key: None });
        Ok(())
    }

    /// Adds a complete node; `text` is how it was written, if it is a scalar.
    fn add(
        &mut self,
        node: DocumentNode,
        text: Option<String>,
        anchor: usize,
    ) -> Result<(), ParseFailure> {
        let node = Rc::new(node);
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node, text)
    }

    fn place(&mut self, node: Rc<DocumentNode>, text: Option<String>) -> Result<(), ParseFailure> {
        let Some(open) = self.open.last_mut() else {
            self.document = Some(node);
            return Ok(());
        };
        match (&mut open.content, mem::take(&mut open.key)) {
            (Content::Map(pairs), Some((key, position))) => {
                pairs.push(Pair { key, position, value: node });
            }
            (Content::Map(_), None) => open.key = Some((key_of(&node, text)?, node.position)),
            (Content::List(items), _) => items.push(node),
            // A scalar is never open.
            (Content::Scalar(_), _) => {}
        }
        Ok(())
    }
}

/// Keys are text in JSON; a number or a flag is taken as it was written.
fn key_of(node: &DocumentNode, text: Option<String>) -> Result<String, ParseFailure> {
    match (&node.content, text) {
        (_, Some(text)) => Ok(text),
        (Content::Scalar(Value::String(text)), None) => Ok(text.clone()),
        (Content::Scalar(value), None) => Ok(value.to_string()),
        _ => Err(ParseFailure::at(node.position, "a key must be text")),
    }
}

fn collection_tag(position: Position, tag: Option<&Tag>, usual: &str) -> Result<(), ParseFailure> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == usual) => {
            Err(unknown_tag(position, tag))
        }
        _ => Ok(()),
    }
}

fn unknown_tag(position: Position, tag: &Tag) -> ParseFailure {
    ParseFailure::at(position, format!("the tag `{tag}` means nothing here"))
}

/// What a scalar means by the core schema of YAML 1.2.
fn scalar(
    position: Position,
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
) -> Result<Value, ParseFailure> {
    let refused = |what: &str| ParseFailure::at(position, format!("`{text}` is not {what}"));
    match tag {
        None if style == ScalarStyle::Plain => null(text)
            .or_else(|| boolean(text))
            .or_else(|| integer(text))
            .map_or_else(|| float(position, text), |value| Ok(Some(value)))
            .map(|value| value.unwrap_or_else(|| Value::from(text))),
        None => Ok(Value::from(text)),
        Some(tag) if !tag.is_yaml_core_schema() => Err(unknown_tag(position, tag)),
        Some(tag) => match tag.suffix.as_str() {
            "str" => Ok(Value::from(text)),
            "null" => null(text).ok_or_else(|| refused("null")),
            "bool" => boolean(text).ok_or_else(|| refused("true or false")),
            "int" => integer(text).ok_or_else(|| refused("a whole number")),
            "float" => match integer(text) {
                Some(whole) => Ok(whole),
                None => float(position, text)?.ok_or_else(|| refused("a number")),
            },
            _ => Err(unknown_tag(position, tag)),
        },
    }
}

fn null(text: &str) -> Option<Value> {
    matches!(text, "" | "~" | "null" | "Null" | "NULL").then_some(Value::Null)
}

fn boolean(text: &str) -> Option<Value> {
    match text {
        "true" | "True" | "TRUE" => Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => Some(Value::Bool(false)),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Value> {
    let of_radix = |digits, radix| i64::from_str_radix(digits, radix).ok().map(Value::from);
    if let Some(digits) = text.strip_prefix("0o").filter(|digits| !digits.starts_with(['+', '-'])) {
        return of_radix(digits, 8);
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| !digits.starts_with(['+', '-'])) {
        return of_radix(digits, 16);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // JSON has no leading zeros.
    let digits = match digits.trim_start_matches('0') {
        "" => "0",
        digits => digits,
    };
    let sign = if text.starts_with('-') && digits != "0" { "-" } else { "" };
    serde_json::from_str(&format!("{sign}{digits}")).ok()
}

/// A number with a fraction or an exponent; an error for the ones that JSON does not have.
fn float(position: Position, text: &str) -> Result<Option<Value>, ParseFailure> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(ParseFailure::at(position, format!("`{text}` is no number that JSON has")));
    }
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or_default();
    let plain = mantissa.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        && mantissa.bytes().any(|byte| byte.is_ascii_digit());
    if !plain {
        return Ok(None);
    }
    Ok(text.parse().ok().and_then(Number::from_f64).map(Value::Number))
}
