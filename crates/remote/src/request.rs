//! A request to a server of S3's kind, before anybody signs it.

use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All that is not a letter, a digit or one of the four signs that mean nothing in an address (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Delete,
    Get,
    Head,
    Post,
    Put,
}

impl Method {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
        }
    }
}

/// What is asked, of an object or, where the key is empty, of the bucket.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) key: String,
    query: Vec<(String, String)>,
    /// The first and the last byte that are asked for, both included.
    range: Option<(u64, u64)>,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn new(method: Method, key: &str) -> Self {
        Self { method, key: key.to_owned(), query: Vec::new(), range: None, body: Bytes::new() }
    }

    pub(crate) fn query(mut self, name: &str, value: &str) -> Self {
        self.query.push((encoded(name), encoded(value)));
        self
    }

    /// Asks for the bytes from `first` to `last`, both included.
    pub(crate) fn range(mut self, first: u64, last: u64) -> Self {
        self.range = Some((first, last));
        self
    }

    pub(crate) fn range_header(&self) -> Option<String> {
        self.range.map(|(first, last)| format!("bytes={first}-{last}"))
    }

    /// How long the answer is when the server gives what was asked for, where that can be told.
    pub(crate) fn range_length(&self) -> Option<u64> {
        self.range.map(|(first, last)| (last - first).saturating_add(1))
    }

    pub(crate) fn body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// The path below that of the bucket.
    pub(crate) fn path(&self) -> String {
        let parts: Vec<_> = self.key.split('/').map(encoded).collect();
        parts.join("/")
    }

    /// The query, in the order in which it is signed.
    pub(crate) fn query_string(&self) -> String {
        let mut sorted = self.query.clone();
        sorted.sort();
        let pairs: Vec<_> = sorted.iter().map(|(name, value)| format!("{name}={value}")).collect();
        pairs.join("&")
    }
}

/// Everything but letters, digits and four signs as `%` and two digits: a signature is over exactly this.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_names_as_they_are_signed() {
        let request = Request::new(Method::Get, "a b/ü~.tar");
        assert_eq!(request.path(), "a%20b/%C3%BC~.tar");
        let request = request.query("prefix", "of/mine").query("list-type", "2");
        assert_eq!(request.query_string(), "list-type=2&prefix=of%2Fmine");
    }
}
