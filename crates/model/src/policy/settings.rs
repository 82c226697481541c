//! What a policy says beside its rules: how the outside is reached, and how much.

use std::net::SocketAddr;

use serde_json::{Map, Value, json};

use super::host::{Host, normal_name};
use crate::lax::{Checked, FromInput, Input};

/// How the outside is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Upstream {
    /// A proxy that connections are asked of (`CONNECT`).
    pub proxy: Option<ProxyAddress>,
    /// Names, and all below them, that are reached without it.
    pub no_proxy: Vec<String>,
    /// A file of certificates of authorities that are trusted besides the host's.
    pub roots: Option<String>,
    /// The server that is asked for addresses, in place of the host's.
    pub dns: Option<SocketAddr>,
}

impl Upstream {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a host is reached by the proxy.
    #[must_use]
    pub fn proxy_for(&self, host: &Host) -> Option<&ProxyAddress> {
        let proxy = self.proxy.as_ref()?;
        let said = self.no_proxy.iter().any(|domain| match host {
            Host::Name(name) => {
                let above = name.strip_suffix(domain.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            Host::Address(address) => address.to_string() == *domain,
        });
        (!said).then_some(proxy)
    }

    pub(super) fn to_value(&self) -> Value {
        let mut out = Map::new();
        if let Some(proxy) = &self.proxy {
            out.insert("proxy".to_owned(), proxy.to_string().into());
        }
        if !self.no_proxy.is_empty() {
            out.insert("no_proxy".to_owned(), json!(self.no_proxy));
        }
        if let Some(roots) = &self.roots {
            out.insert("roots".to_owned(), roots.as_str().into());
        }
        if let Some(dns) = &self.dns {
            out.insert("dns".to_owned(), dns.to_string().into());
        }
        Value::Object(out)
    }
}

/// Where a proxy is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for ProxyAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.host {
            Host::Address(std::net::IpAddr::V6(v6)) => write!(f, "http://[{v6}]:{}", self.port),
            host => write!(f, "http://{host}:{}", self.port),
        }
    }
}

impl ProxyAddress {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no proxy; write http://HOST:PORT");
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains('@') {
            return Err("a proxy with a password is not supported".to_owned());
        }
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(Self { host: Host::parse(host)?, port })
    }
}

impl FromInput for Upstream {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Upstream")?;
        fields.forbid_extra();
        let proxy = fields.or_with("proxy", None, |input| {
            let text = String::from_input(input)?;
            ProxyAddress::parse(&text).map(Some).map_err(|message| input.value_error(message))
        });
        let no_proxy = fields.or_with("no_proxy", Vec::new(), |input| {
            input.list(|item| {
                let text = String::from_input(item)?;
                match Host::parse(text.strip_prefix('.').unwrap_or(&text)) {
                    Ok(host) => Ok(host.to_string()),
                    Err(message) => Err(item.value_error(message)),
                }
            })
        });
        let roots = fields.or_with("roots", None, |input| {
            let path = String::from_input(input)?;
            if !path.starts_with('/') || path.contains('\0') {
                return Err(input.value_error("the path of the roots begins with a slash"));
            }
            Ok(Some(path))
        });
        let dns = fields.or_with("dns", None, |input| {
            let text = String::from_input(input)?;
            let bare = text.parse().map(|address| SocketAddr::new(address, 53));
            let server = bare.ok().or_else(|| text.parse::<SocketAddr>().ok());
            server.map(Some).ok_or_else(|| input.value_error("a server is ADDRESS or ADDRESS:PORT"))
        });
        fields.build(|| Some(Self { proxy: proxy?, no_proxy: no_proxy?, roots: roots?, dns: dns? }))
    }
}

/// How much a session may have of the outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time; others wait.
    pub connections: u32,
    /// After how many seconds without a byte a connection ends.
    pub idle_seconds: u32,
    /// How many bytes may pass in all, both ways; any number, if none.
    pub bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: Self::MAX_CONNECTIONS, idle_seconds: 300, bytes: None }
    }
}

impl Limits {
    /// The most connections, and how many there may be where nobody says.
    pub const MAX_CONNECTIONS: u32 = 256;

    pub(super) fn to_value(self) -> Value {
        let mut out = Map::new();
        out.insert("connections".to_owned(), self.connections.into());
        out.insert("idle_seconds".to_owned(), self.idle_seconds.into());
        if let Some(bytes) = self.bytes {
            out.insert("bytes".to_owned(), bytes.into());
        }
        Value::Object(out)
    }

    pub(super) fn at_most(self, other: Self) -> Self {
        let bytes = match (self.bytes, other.bytes) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self {
            connections: self.connections.min(other.connections),
            idle_seconds: self.idle_seconds.min(other.idle_seconds),
            bytes,
        }
    }
}

/// Reads a number between two others.
pub(super) fn bounded(least: u64, most: u64) -> impl Fn(Input<'_>) -> Checked<u64> {
    move |input| {
        let number = input.int()?;
        let number = u64::try_from(number).ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| input.value_error(format!("it must be from {least} to {most}")))
    }
}

impl FromInput for Limits {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let usual = Self::default();
        let small = |least, most| {
            let read = bounded(least, most);
            move |input: Input<'_>| Ok(u32::try_from(read(input)?).unwrap_or(u32::MAX))
        };
        let mut fields = input.fields("Limits")?;
        fields.forbid_extra();
        let most = u64::from(Self::MAX_CONNECTIONS);
        let connections = fields.or_with("connections", usual.connections, small(1, most));
        let idle_seconds = fields.or_with("idle_seconds", usual.idle_seconds, small(1, 86_400));
        let bytes = fields.or_with("bytes", None, |i| bounded(1, u64::MAX >> 1)(i).map(Some));
        fields.build(|| {
            Some(Self { connections: connections?, idle_seconds: idle_seconds?, bytes: bytes? })
        })
    }
}

/// Reads a name that answers of our own are for.
pub(super) fn own_name(name: &str) -> Result<String, String> {
    normal_name(name)
}
