//! Protocol buffers, as far as OTLP needs them.

/// A message that is being written: fields in any order, each with its number.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
            number >>= 7;
        }
        self.0.push(u8::try_from(number).unwrap_or(0));
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    pub(super) fn number(mut self, field: u64, number: u64) -> Self {
        self.key(field, VARINT);
        self.varint(number);
        self
    }

    pub(super) fn fixed(mut self, field: u64, number: u64) -> Self {
        self.key(field, FIXED64);
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn double(self, field: u64, number: f64) -> Self {
        self.fixed(field, number.to_bits())
    }

    pub(super) fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u64, message: Self) -> Self {
        self.bytes(field, &message.0)
    }

    pub(super) fn messages(self, field: u64, all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(self, |message, one| message.message(field, one))
    }

    /// Numbers of eight bytes each, as one field.
    pub(super) fn packed(self, field: u64, numbers: impl IntoIterator<Item = u64>) -> Self {
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        self.bytes(field, &bytes)
    }
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Flag(bool),
    Number(i64),
}

/// An attribute.
pub(super) fn attribute(key: &str, value: &Value) -> Message {
    let any = match value {
        Value::Text(text) => Message::default().text(1, text),
        Value::Flag(flag) => Message::default().number(2, u64::from(*flag)),
        Value::Number(number) => Message::default().number(3, number.cast_unsigned()),
    };
    Message::default().text(1, key).message(2, any)
}

/// What everything that is sent comes from.
pub(super) fn resource() -> Message {
    let name = attribute("service.name", &Value::Text("bastide".to_owned()));
    Message::default().message(1, name)
}

/// What measured it.
pub(super) fn scope() -> Message {
    Message::default().text(1, "bastide").text(2, env!("CARGO_PKG_VERSION"))
}
