//! The rules of a policy.

use std::fmt;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use super::host::HostPattern;
use super::path::PathGlob;
use super::secret::Template;
use crate::lax::{Checked, FromInput, Input};

/// What a rule says of whatever fits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It may.
    Allow,
    /// It may not.
    Deny,
    /// Somebody is asked.
    Ask,
}

impl Action {
    /// The word in the document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

/// How a connection is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Bytes; nothing is read.
    Tcp,
    /// TLS, whose first message names the host.
    Tls,
    /// HTTP without TLS.
    Http,
}

const PROTOCOLS: &[(&str, Protocol)] =
    &[("tcp", Protocol::Tcp), ("tls", Protocol::Tls), ("http", Protocol::Http)];

impl Protocol {
    /// The word in the document.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Http => "http",
        }
    }

    /// What a port carries where nobody says otherwise.
    #[must_use]
    pub fn usual(port: u16) -> Self {
        match port {
            443 => Self::Tls,
            80 => Self::Http,
            _ => Self::Tcp,
        }
    }
}

/// Ports next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl PortRange {
    /// One port.
    #[must_use]
    pub fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether a port is one of them.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromInput for PortRange {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let wrong =
            || input.value_error("a port is a number from 1 to 65535, or a range `8000-8010`");
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        match input.value() {
            Value::Number(number) => port(&number.to_string()).map(Self::one).ok_or_else(wrong),
            Value::String(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let (Some(first), Some(last)) = (port(first.trim()), port(last.trim())) else {
                    return Err(wrong());
                };
                if first > last {
                    return Err(
                        input.value_error(format!("the range {text} ends before it begins"))
                    );
                }
                Ok(Self { first, last })
            }
            _ => Err(wrong()),
        }
    }
}

/// What a request must be like for a rule to fit. What is not said fits everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HttpMatch {
    /// The methods; any, if none.
    pub methods: Vec<String>,
    /// The paths; any, if none.
    pub paths: Vec<PathGlob>,
    /// Parameters of the query, each of which must be there and fit.
    pub query: IndexMap<String, String>,
    /// Headers, each of which must be there and fit; names in lower case.
    pub headers: IndexMap<String, String>,
}

impl FromInput for HttpMatch {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("HttpMatch")?;
        fields.forbid_extra();
        let methods = fields.or_with("methods", Vec::new(), |input| input.list(method));
        let paths = fields.or_with("paths", Vec::new(), |input| input.list(PathGlob::from_input));
        let query = fields.or_with("query", IndexMap::new(), |input| input.map(String::from_input));
        let headers = fields.or_with("headers", IndexMap::new(), headers);
        fields.build(|| {
            Some(Self { methods: methods?, paths: paths?, query: query?, headers: headers? })
        })
    }
}

fn method(input: Input<'_>) -> Checked<String> {
    let text = String::from_input(input)?;
    let upper = text.to_ascii_uppercase();
    if !is_token(&text) {
        return Err(input.value_error(format!("{text:?} is no method of HTTP")));
    }
    if upper == "CONNECT" {
        return Err(input.value_error("CONNECT is never allowed; name the host it leads to"));
    }
    Ok(upper)
}

fn headers(input: Input<'_>) -> Checked<IndexMap<String, String>> {
    let read = input.map(String::from_input)?;
    match read.keys().find(|name| !is_token(name)) {
        Some(name) => Err(input.value_error(format!("{name:?} is no name of a header"))),
        None => Ok(read.into_iter().map(|(key, glob)| (key.to_ascii_lowercase(), glob)).collect()),
    }
}

/// Whether a text is a token of HTTP.
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 64 && text.bytes().all(fits)
}

impl HttpMatch {
    fn to_value(&self) -> Value {
        let mut out = Map::new();
        let mut put = |name: &str, value: Value, is_empty: bool| {
            if !is_empty {
                out.insert(name.to_owned(), value);
            }
        };
        put("methods", json!(self.methods), self.methods.is_empty());
        put("paths", texts(&self.paths), self.paths.is_empty());
        put("query", text_map(&self.query), self.query.is_empty());
        put("headers", text_map(&self.headers), self.headers.is_empty());
        Value::Object(out)
    }
}

/// A header that is set on requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inject {
    /// The header, in lower case.
    pub header: String,
    /// Its value, with names of secrets.
    pub value: Template,
}

/// Headers that say where a message ends, or whom it is for.
const NOT_INJECTED: &[&str] = &[
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "te",
    "trailer",
    "keep-alive",
    "proxy-connection",
    "expect",
];

impl FromInput for Inject {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Inject")?;
        fields.forbid_extra();
        let header = fields.required_with("header", |input| {
            let name = String::from_input(input)?.to_ascii_lowercase();
            if !is_token(&name) {
                return Err(input.value_error(format!("{name:?} is no name of a header")));
            }
            if NOT_INJECTED.contains(&name.as_str()) {
                let message = format!("`{name}` is what the connection itself needs");
                return Err(input.value_error(message));
            }
            Ok(name)
        });
        let value = fields.required("value");
        fields.build(|| Some(Self { header: header?, value: value? }))
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What it says.
    pub action: Action,
    /// The hosts it is about.
    pub hosts: Vec<HostPattern>,
    /// The ports it is about; see [`Rule::fits_port`] for what holds where none is said.
    pub ports: Vec<PortRange>,
    /// How connections are understood, if not as usual for the port.
    pub protocol: Option<Protocol>,
    /// Which requests it is about; all, if none.
    pub http: Vec<HttpMatch>,
    /// Headers to set on requests that it allows.
    pub inject: Vec<Inject>,
    /// Why, for whoever is denied.
    pub reason: Option<String>,
    /// Whether names may lead to private places.
    pub private: bool,
    /// Whether a connection with TLS may leave out the name.
    pub sni_optional: bool,
    /// Whether packages that come from there are kept for other sessions; what presets stand for is, where a policy says
    /// `package_cache`.
    pub cache: bool,
    /// Whether it is of the floor, which nobody's own rules come before.
    pub floor: bool,
    /// The line of the document it stands in; 0 if it stands in none.
    pub line: usize,
}

impl Rule {
    /// A rule about hosts and nothing else.
    #[must_use]
    pub fn new(action: Action, hosts: Vec<HostPattern>) -> Self {
        Self {
            action,
            hosts,
            ports: Vec::new(),
            protocol: None,
            http: Vec::new(),
            inject: Vec::new(),
            reason: None,
            private: false,
            sni_optional: false,
            cache: false,
            floor: false,
            line: 0,
        }
    }

    /// Whether it is about a port. Where no port is said, `allow` and `ask` mean 443 and 80 (443 alone if it injects,
    /// because secrets go nowhere in the clear); `deny` means every port.
    #[must_use]
    pub fn fits_port(&self, port: u16) -> bool {
        if !self.ports.is_empty() {
            return self.ports.iter().any(|range| range.contains(port));
        }
        match self.action {
            Action::Allow if !self.inject.is_empty() => port == 443,
            Action::Allow | Action::Ask => matches!(port, 80 | 443),
            Action::Deny => true,
        }
    }

    /// How it understands a connection to a port; `None` if it does not mind.
    #[must_use]
    pub fn protocol_on(&self, port: u16) -> Option<Protocol> {
        match (self.protocol, self.action) {
            (Some(protocol), _) => Some(protocol),
            (None, Action::Deny) => None,
            (None, Action::Allow | Action::Ask) => Some(Protocol::usual(port)),
        }
    }

    /// Whether it can be told of a connection only by its requests.
    #[must_use]
    pub fn is_about_requests(&self) -> bool {
        !self.http.is_empty()
    }

    /// Whether connections of TLS that it may allow are read.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.is_about_requests() || !self.inject.is_empty() || self.cache
    }

    /// The rule as JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert(self.action.as_str().to_owned(), texts(&self.hosts));
        let mut put = |name: &str, value: Value| {
            out.insert(name.to_owned(), value);
        };
        if !self.ports.is_empty() {
            put("ports", texts(&self.ports));
        }
        if let Some(protocol) = self.protocol {
            put("protocol", protocol.as_str().into());
        }
        if !self.http.is_empty() {
            put("http", self.http.iter().map(HttpMatch::to_value).collect());
        }
        if !self.inject.is_empty() {
            let inject = |inject: &Inject| json!({"header": inject.header, "value": inject.value.to_string()});
            put("inject", self.inject.iter().map(inject).collect());
        }
        if let Some(reason) = &self.reason {
            put("reason", reason.as_str().into());
        }
        if self.private {
            put("private", true.into());
        }
        if self.sni_optional {
            put("sni", "optional".into());
        }
        if self.cache {
            put("cache", true.into());
        }
        if self.floor {
            put("floor", true.into());
        }
        if self.line != 0 {
            put("line", self.line.into());
        }
        Value::Object(out)
    }
}

fn text_map(map: &IndexMap<String, String>) -> Value {
    map.iter().map(|(key, text)| (key.clone(), Value::from(text.as_str()))).collect()
}

fn texts<T: fmt::Display>(items: &[T]) -> Value {
    items.iter().map(|item| Value::from(item.to_string())).collect()
}

const ACTIONS: [(&str, Action); 3] =
    [("allow", Action::Allow), ("deny", Action::Deny), ("ask", Action::Ask)];

/// More than anybody writes.
const MAX_REASON: usize = 512;

impl FromInput for Rule {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let mut fields = input.fields("Rule")?;
        fields.forbid_extra();
        let mut said = Vec::new();
        for (word, action) in ACTIONS {
            if fields.has(word) {
                said.push((action, fields.required_with(word, hosts)));
            } else {
                fields.accept(word);
            }
        }
        let ports = fields.or_with("ports", Vec::new(), |input| match input.value() {
            Value::Array(_) => input.list(PortRange::from_input),
            _ => PortRange::from_input(input).map(|range| vec![range]),
        });
        let protocol = fields.or_with("protocol", None, |i| i.one_of(PROTOCOLS).map(Some));
        let http = fields.or_with("http", Vec::new(), |input| {
            let list = input.list(HttpMatch::from_input)?;
            if list.is_empty() {
                return Err(input.value_error("an empty list fits no request; leave it out"));
            }
            Ok(list)
        });
        let inject = fields.or_with("inject", Vec::new(), |input| input.list(Inject::from_input));
        let reason = fields.or_with("reason", None, |input| {
            let text = String::from_input(input)?;
            if text.len() > MAX_REASON || text.chars().any(char::is_control) {
                let message = format!("a reason is one line of at most {MAX_REASON} bytes");
                return Err(input.value_error(message));
            }
            Ok(Some(text))
        });
        let private = fields.or("private", false);
        let sni = fields.or_with("sni", false, |input| {
            input.one_of(&[("required", false), ("optional", true)])
        });
        let cache = fields.or("cache", false);
        let floor = fields.or("floor", false);
        let line = fields.or_with("line", 0, |input| {
            usize::try_from(input.int()?).map_err(|_| input.value_error("a line is a number"))
        });
        let one = fields.whole(|input| match &mut *said {
            [one] => Ok((one.0, one.1.take())),
            [] => Err(input.value_error("a rule says `allow`, `deny` or `ask`")),
            _ => Err(input.value_error("a rule says one of `allow`, `deny` and `ask`")),
        });
        let rule = fields.build(|| {
            // Wrong hosts are among the errors by now.
            let (action, hosts) = one?;
            Some(Self {
                action,
                hosts: hosts?,
                ports: ports?,
                protocol: protocol?,
                http: http?,
                inject: inject?,
                reason: reason?,
                private: private?,
                sni_optional: sni?,
                cache: cache?,
                floor: floor?,
                line: line?,
            })
        })?;
        rule.check().map_err(|message| input.value_error(message))?;
        Ok(rule)
    }
}

/// One pattern, or several.
fn hosts(input: Input<'_>) -> Checked<Vec<HostPattern>> {
    if input.value().is_string() {
        return HostPattern::from_input(input).map(|pattern| vec![pattern]);
    }
    let list = input.list(HostPattern::from_input)?;
    if list.is_empty() {
        return Err(input.value_error("name at least one host"));
    }
    Ok(list)
}

impl Rule {
    /// What does not go together.
    fn check(&self) -> Result<(), String> {
        let reads = !self.http.is_empty() || !self.inject.is_empty();
        if !self.inject.is_empty() && self.action != Action::Allow {
            return Err("only a rule that allows can inject".to_owned());
        }
        if self.cache && self.action != Action::Allow {
            return Err("only what a rule allows can be kept".to_owned());
        }
        if self.protocol == Some(Protocol::Tcp) && (reads || self.cache) {
            return Err(
                "with `protocol: tcp` nothing is read; leave out `http`, `inject` and `cache`"
                    .to_owned(),
            );
        }
        if self.protocol.is_none() && reads && self.action != Action::Deny {
            let odd = self.ports.iter().find(|range| {
                (range.first..=range.last).any(|port| Protocol::usual(port) == Protocol::Tcp)
            });
            if let Some(range) = odd {
                return Err(format!(
                    "port {range} carries bytes unless told otherwise; say `protocol: tls` or `protocol: http`"
                ));
            }
        }
        let is_clear = self.protocol == Some(Protocol::Http)
            || self.protocol.is_none() && self.ports.iter().any(|range| range.contains(80));
        if is_clear && !self.inject.is_empty() {
            return Err("secrets go nowhere in the clear; inject on a port with TLS".to_owned());
        }
        Ok(())
    }
}
