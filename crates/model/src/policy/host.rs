//! Places that programs dial, and patterns of them.

use std::fmt;
use std::net::IpAddr;

use super::address::Network;
use crate::lax::{Checked, FromInput, Input};

/// The longest name there is.
const MAX_NAME: usize = 253;

/// The longest label of a name.
const MAX_LABEL: usize = 63;

/// What a program dials.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name in its normal form; see [`normal_name`].
    Name(String),
    /// An address, by itself.
    Address(IpAddr),
}

impl Host {
    /// Reads a name or an address, an IPv6 address also in brackets.
    ///
    /// # Errors
    ///
    /// Why it is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match bare.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) => normal_name(text).map(Self::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// The one form of a name: in ASCII (IDNA), in lower case, without a dot at its end.
///
/// ```
/// use bastide_model::policy::normal_name;
///
/// assert_eq!(normal_name("Bücher.Example.").as_deref(), Ok("xn--bcher-kva.example"));
/// assert!(normal_name("a..b").is_err());
/// assert!(normal_name("127.1").is_err());
/// ```
///
/// # Errors
///
/// Why it is no name of a host.
pub fn normal_name(text: &str) -> Result<String, String> {
    let trimmed = text.strip_suffix('.').unwrap_or(text);
    let name = idna::domain_to_ascii(trimmed)
        .map_err(|_| format!("{text:?} is no name of a host that IDNA knows"))?;
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(format!("a name has 1 to {MAX_NAME} characters"));
    }
    for label in name.split('.') {
        if label.is_empty() || label.len() > MAX_LABEL {
            return Err(format!("each part of a name has 1 to {MAX_LABEL} characters"));
        }
        let fits = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
        };
        if !label.bytes().all(fits) || label.starts_with('-') || label.ends_with('-') {
            return Err(format!("{text:?} is no name of a host"));
        }
    }
    if ends_in_number(&name) {
        return Err(format!(
            "{text:?} ends in a number as addresses do; write the address as a.b.c.d"
        ));
    }
    Ok(name)
}

/// Whether the old functions of the C library may take it for an address, as they do `127.1`.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x");
    last.bytes().all(|byte| byte.is_ascii_digit())
        || hexadecimal.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// A pattern of hosts.
///
/// ```
/// use bastide_model::policy::{Host, HostPattern};
///
/// let fits = |pattern: &str, host: &str| {
///     HostPattern::parse(pattern).unwrap().fits(&Host::parse(host).unwrap())
/// };
/// assert!(fits("*.a.org", "b.a.org") && !fits("*.a.org", "a.org") && !fits("*.a.org", "c.b.a.org"));
/// assert!(fits("**.a.org", "c.b.a.org") && !fits("**.a.org", "a.org"));
/// assert!(fits("*", "a.org") && !fits("*", "10.0.0.1") && fits("10.0.0.0/8", "10.0.0.1"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This name: `a.b`.
    Name(String),
    /// One label more: `*.a.b`.
    Child(String),
    /// Any number of labels more, at least one: `**.a.b`.
    Below(String),
    /// Every name: `*`.
    AnyName,
    /// Addresses, by themselves.
    Addresses(Network),
    /// A list that this machine's own settings say: `@pip`.
    Preset(String),
}

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::AnyName);
        }
        if let Some(preset) = text.strip_prefix('@') {
            let fits = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
            };
            if preset.is_empty() || preset.len() > MAX_LABEL || !preset.bytes().all(fits) {
                return Err(format!(
                    "{text:?} is no preset; a preset is @ and a word in lower case"
                ));
            }
            return Ok(Self::Preset(preset.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("**.") {
            return normal_name(rest).map(Self::Below);
        }
        if let Some(rest) = text.strip_prefix("*.") {
            return normal_name(rest).map(Self::Child);
        }
        if text.contains('*') {
            return Err(format!(
                "{text:?} is no pattern; `*.a.b` is one label more, `**.a.b` any number, `*` every name"
            ));
        }
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Some(network) = Network::parse(bare)? {
            return Ok(Self::Addresses(network));
        }
        if text.contains("://") || text.contains('/') {
            return Err(format!(
                "{text:?} is no host; write the name alone, paths belong under `http`"
            ));
        }
        if text.contains(':') {
            return Err(format!("{text:?} is no host; ports belong under `ports`"));
        }
        normal_name(text).map(Self::Name)
    }

    /// Whether a host is meant. A preset that nobody resolved means nothing.
    #[must_use]
    pub fn fits(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Name(name), Host::Name(dialled)) => name == dialled,
            (Self::Child(parent), Host::Name(dialled)) => {
                above(dialled, parent).is_some_and(|label| !label.contains('.'))
            }
            (Self::Below(parent), Host::Name(dialled)) => above(dialled, parent).is_some(),
            (Self::AnyName, Host::Name(_)) => true,
            (Self::Addresses(network), Host::Address(address)) => network.contains(*address),
            _ => false,
        }
    }
}

/// What stands in front of `.parent`.
fn above<'a>(name: &'a str, parent: &str) -> Option<&'a str> {
    let label = name.strip_suffix(parent)?.strip_suffix('.')?;
    (!label.is_empty()).then_some(label)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Child(parent) => write!(f, "*.{parent}"),
            Self::Below(parent) => write!(f, "**.{parent}"),
            Self::AnyName => f.write_str("*"),
            Self::Addresses(network) => write!(f, "{network}"),
            Self::Preset(name) => write!(f, "@{name}"),
        }
    }
}

impl FromInput for HostPattern {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let text = String::from_input(input)?;
        Self::parse(&text).map_err(|message| input.value_error(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_no_pattern() {
        for wrong in [
            "",
            ".",
            "a..b",
            "a*.b",
            "*.*.b",
            "**",
            "*.",
            "https://a.b",
            "a.b:443",
            "a.b/c",
            "a b",
            "-a.b",
            "a_\u{0}.b",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "1.2.3",
            "0x7f.1",
            "a.0x7f",
            "@",
            "@UP",
            "::1/129",
            "ex\u{ad}ample\u{3002}.",
        ] {
            let read = HostPattern::parse(wrong);
            assert!(read.is_err(), "{wrong:?}: {read:?}");
        }
        assert!(HostPattern::parse(&"a".repeat(64)).is_err());
        assert!(HostPattern::parse(&"a.".repeat(128)).is_err());
    }

    #[test]
    fn has_one_form_for_every_spelling() {
        for (spelling, form) in [
            ("GitHub.COM.", "github.com"),
            ("*.Ä.example", "*.xn--4ca.example"),
            ("_dmarc.a.b", "_dmarc.a.b"),
            ("[::1]", "::1"),
            ("10.1.0.0/16", "10.1.0.0/16"),
            ("faß.de", "xn--fa-hia.de"),
        ] {
            assert_eq!(HostPattern::parse(spelling).unwrap().to_string(), form);
        }
    }
}
