//! TOML with positions.

use std::rc::Rc;

use serde_json::{Number, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::node::{Content, DocumentNode, Pair, ParseFailure, Position};

pub(super) fn parse(text: &str) -> Result<DocumentNode, ParseFailure> {
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        ParseFailure::at(Position::Byte(start), error.message().trim_end().to_owned())
    })?;
    self::table(Position::Byte(0), table.get_ref())
}

fn table(position: Position, table: &DeTable<'_>) -> Result<DocumentNode, ParseFailure> {
    let pair = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let key_text: &std::borrow::Cow<'_, str> = key.get_ref();
        Ok(Pair {
            key: key_text.to_string(),
            position: Position::Byte(key.span().start),
            value: Rc::new(node(value)?),
        })
    };
    let pairs = table.iter().map(pair).collect::<Result<_, ParseFailure>>()?;
    DocumentNode::new(position, Content::Map(pairs))
}

fn node(value: &Spanned<DeValue<'_>>) -> Result<DocumentNode, ParseFailure> {
    let position = Position::Byte(value.span().start);
    let scalar = match value.get_ref() {
        DeValue::Table(inner) => return table(position, inner),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| node(item).map(Rc::new));
            return DocumentNode::new(position, Content::List(items.collect::<Result<_, _>>()?));
        }
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        // JSON has no dates; their text is what a reader can make something of.
        DeValue::Datetime(datetime) => Value::from(datetime.to_string()),
        DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix())
            .map(Value::from)
            .map_err(|_| ParseFailure::at(position, "the number does not fit into 64 bits"))?,
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(Number::from_f64);
            number.map(Value::Number).ok_or_else(|| {
                ParseFailure::at(
                    position,
                    format!("`{}` is no number that JSON has", float.as_str()),
                )
            })?
        }
    };
    Ok(DocumentNode::scalar(position, scalar))
}
