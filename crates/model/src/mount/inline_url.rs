//! Credentials that hide in the addresses of services.
//!
//! Addresses are cut into parts as the reference's language cuts them, because what it calls a
//! query or a user decides what counts as a credential.

use std::borrow::Cow;
use std::net::Ipv6Addr;

use indexmap::IndexSet;

/// Whether an address carries more than a place: a user, a password, a query, or something so odd
/// that nobody can tell.
///
/// ```
/// use bastide_model::mount::url_holds_authority;
///
/// assert!(!url_holds_authority("https://s3.example.test:9000/base"));
/// assert!(url_holds_authority("https://key:secret@s3.example.test"));
/// assert!(url_holds_authority("https://s3.example.test?sig=abc"));
/// assert!(url_holds_authority("https://[::1"));
/// ```
#[must_use]
pub fn url_holds_authority(url: &str) -> bool {
    url.contains('@') || Parts::of(url).is_none_or(|parts| !parts.query.is_empty())
}

/// Every text that must not be shown if `url` [holds authority](url_holds_authority): the address
/// itself, its user, password and query, and the values in the query, as they are written and
/// decoded.
///
/// ```
/// use bastide_model::mount::url_authority_values;
///
/// let values = url_authority_values("https://u:p%40ss@h");
/// assert_eq!(values, ["https://u:p%40ss@h", "u", "p%40ss", "p@ss"]);
/// ```
#[must_use]
pub fn url_authority_values(url: &str) -> Vec<String> {
    if !url_holds_authority(url) {
        return Vec::new();
    }
    let mut values = IndexSet::from([url.to_owned()]);
    let Some(parts) = Parts::of(url) else { return values.into_iter().collect() };
    let mut add = |value: &str| {
        if !value.is_empty() {
            values.insert(value.to_owned());
            values.insert(percent_decoded(value).into_owned());
        }
    };
    let (user, password) = parts.user_and_password();
    add(user);
    add(password);
    add(&parts.query);
    for field in parts.query.split('&') {
        if let Some((_, value)) = field.split_once('=') {
            add(&percent_decoded(&value.replace('+', " ")));
        }
    }
    values.into_iter().collect()
}

/// The parts of an address that can hold credentials.
struct Parts {
    /// What is between `//` and the path.
    server: String,
    query: String,
}

impl Parts {
    /// Cuts an address into parts, or `None` if it is not one.
    fn of(url: &str) -> Option<Self> {
        let url = url.trim_start_matches(|c| c <= ' ').replace(['\t', '\r', '\n'], "");
        let rest = match url.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => rest,
            _ => &url,
        };
        let (server, rest) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            None => ("", rest),
        };
        if !brackets_hold_an_address(server) || server.contains(EXPANDS_TO_A_SEPARATOR) {
            return None;
        }
        let rest = rest.split_once('#').map_or(rest, |(rest, _fragment)| rest);
        let query = rest.split_once('?').map_or("", |(_path, query)| query);
        Some(Self { server: server.to_owned(), query: query.to_owned() })
    }

    fn user_and_password(&self) -> (&str, &str) {
        let user = self.server.rsplit_once('@').map_or("", |(user, _host)| user);
        user.split_once(':').unwrap_or((user, ""))
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// Letters that become `/`, `?`, `#`, `@` or `:` when a name is normalized: a host that has one is
/// not the host it seems to be.
const EXPANDS_TO_A_SEPARATOR: [char; 19] = [
    '\u{2047}', '\u{2048}', '\u{2049}', '\u{2100}', '\u{2101}', '\u{2105}', '\u{2106}', '\u{2a74}',
    '\u{fe13}', '\u{fe16}', '\u{fe55}', '\u{fe56}', '\u{fe5f}', '\u{fe6b}', '\u{ff03}', '\u{ff0f}',
    '\u{ff1a}', '\u{ff1f}', '\u{ff20}',
];

/// Whether what a server has between brackets, if anything, is an IPv6 address or one of a version
/// to come.
fn brackets_hold_an_address(server: &str) -> bool {
    let (open, close) = (server.split_once('['), server.contains(']'));
    let Some((_, inner)) = open else { return !close };
    let inner = inner.split_once(']').map_or(inner, |(inner, _)| inner);
    if let Some(future) = inner.strip_prefix('v') {
        return future.split_once('.').is_some_and(|(version, address)| {
            !version.is_empty()
                && version.bytes().all(|byte| byte.is_ascii_hexdigit())
                && !address.is_empty()
        }) && close;
    }
    let (address, zone_is_fine) = match inner.split_once('%') {
        Some((address, zone)) => (address, !zone.is_empty() && !zone.contains('%')),
        None => (inner, true),
    };
    close && zone_is_fine && address.parse::<Ipv6Addr>().is_ok()
}

/// `text` with `%xx` replaced by what it stands for; what is not UTF-8 then is marked as such. Text
/// that is not ASCII ends a run of bytes.
fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let run_ends = |c: char| c.is_ascii() != first.is_ascii();
        let (run, tail) = rest.split_at(rest.find(run_ends).unwrap_or(rest.len()));
        if first.is_ascii() {
            out.push_str(&String::from_utf8_lossy(&decoded_bytes(run.as_bytes())));
        } else {
            out.push_str(run);
        }
        rest = tail;
    }
    Cow::Owned(out)
}

fn decoded_bytes(mut rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(rest.len());
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| hex_byte(tail)).flatten();
        out.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    out
}

/// The byte that the first two digits stand for.
fn hex_byte(text: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(*text.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_places_from_credentials() {
        let cases = [
            ("", false),
            ("https://[::1%eth0]:80/x", false),
            ("https://[v1f.x]", false),
            ("https://[v1.]", true),
            ("https://[1.2.3.4]", true),
            ("https://]", true),
            ("https://a/?", false),
            ("https://a/#?x", false),
            ("//a?x", true),
            ("http://ex\u{ff0f}ample", true),
            ("http\u{ff0f}x:y", false),
            (" \thttps://[::1]", false),
        ];
        for (url, want) in cases {
            assert_eq!(url_holds_authority(url), want, "url {url:?}");
        }
    }

    #[test]
    fn decodes_run_by_run() {
        assert_eq!(percent_decoded("%C3é%A9%zz%"), "\u{fffd}é\u{fffd}%zz%");
        assert_eq!(percent_decoded("a%C3%A9"), "aé");
    }
}
