//! The policy of a session's network: which places its programs reach, and what they may say there.
//!
//! Rules stand in order; the first that fits decides, and what none fits is denied. Everything here is pure: nothing is
//! asked of the network, and no value of a secret is known.
//!
//! ```
//! use bastide_model::document::Format;
//! use bastide_model::policy::{Flow, Host, Policy, Verdict};
//!
//! let text = "rules:\n- allow: [example.org, '*.example.org']\n- deny: '*'\n  reason: ask Ops\n";
//! let policy = Policy::parse("policy.yaml", text, Format::Yaml)?;
//! let decide = |host: &str| {
//!     let host = Host::parse(host).unwrap();
//!     policy.explain(&Flow { host: &host, port: 443, http: None }).verdict
//! };
//! assert_eq!(decide("www.example.org"), Verdict::Allow);
//! assert_eq!(decide("example.com"), Verdict::Deny);
//!
//! let error = Policy::parse("policy.yaml", "rules:\n- allow: a..b\n", Format::Yaml).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "policy.yaml:2:3: rules.0.allow: each part of a name has 1 to 63 characters",
//! );
//! # Ok::<(), bastide_model::Error>(())
//! ```

mod address;
mod approval;
mod decide;
mod host;
mod path;
mod preset;
mod rule;
mod secret;
mod settings;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::document::{Document, Format};
use crate::lax::{Checked, Context, FromInput, Input, Invalid, PathSegment};
use crate::registry::Registry;
use crate::{Error, ErrorKind, Result};

pub use address::{AddressOwner, Network, SpecialAddress, special_address};
pub use decide::{DecisionReason, Explanation, Flow, HttpRequest, RuleMatch, Verdict};
pub use host::{Host, HostPattern, normal_name};
pub use path::{InvalidPath, NormalPath, PathGlob};
pub use preset::{PRESETS, PresetHost};
pub use rule::{Action, HttpMatch, Inject, PortRange, Protocol, Rule};
pub use secret::{SecretSource, SecretSpec, Template, TemplatePart};
pub use settings::{Limits, ProxyAddress, Upstream};

/// The most ports one policy may be about, 80 and 443 among them.
pub const MAX_PORTS: usize = 512;

/// The most rules of a policy.
pub const MAX_RULES: usize = 1024;

/// How long somebody who is asked may take, in seconds.
const MAX_ASK: u64 = 3600;

/// The policy of a session's network.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// The secrets, by name; never their values.
    pub secrets: IndexMap<String, SecretSpec>,
    /// Addresses of names that are not asked of anybody.
    pub hosts: IndexMap<String, Vec<IpAddr>>,
    /// How the outside is reached.
    pub upstream: Upstream,
    /// How much a session may have of it.
    pub limits: Limits,
    /// How long something that is asked about waits for an answer.
    pub ask_seconds: u64,
    /// Whether packages that come from what presets stand for are kept for other sessions.
    pub package_cache: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            secrets: IndexMap::new(),
            hosts: IndexMap::new(),
            upstream: Upstream::default(),
            limits: Limits::default(),
            ask_seconds: 60,
            package_cache: false,
        }
    }
}

impl Policy {
    /// Reads a policy that a person wrote; `name` is how errors call the file.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, each with its line and field.
    pub fn parse(name: &str, text: &str, format: Format) -> Result<Self> {
        let document = Document::parse(name, text, format)?;
        let mut policy = document.read::<Self>(Registry::builtin())?.value;
        for (index, rule) in policy.rules.iter_mut().enumerate() {
            if rule.line == 0 {
                let place = [PathSegment::Key("rules".to_owned()), PathSegment::Index(index)];
                rule.line = document.locate(&place).0;
            }
        }
        Ok(policy)
    }

    /// Reads a policy out of the options of a session.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, each with its field.
    pub fn from_value(value: &Value) -> Result<Self> {
        let context = Context::new().unknown_keys(crate::lax::UnknownKeys::Refuse);
        context.read(value)
    }

    /// Reads what [`to_value`](Self::to_value) made.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = serde_json::from_str(text).map_err(|error| {
            let message = format!("the policy is no JSON (column {})", error.column());
            Error::new(ErrorKind::InvalidInput, message)
        })?;
        Self::from_value(&value)
    }

    /// The policy as JSON; reading it again gives the same.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("version".to_owned(), 1.into());
        out.insert("rules".to_owned(), self.rules.iter().map(Rule::to_value).collect());
        if !self.secrets.is_empty() {
            let secrets = self.secrets.iter().map(|(name, spec)| (name.clone(), spec.to_value()));
            out.insert("secrets".to_owned(), Value::Object(secrets.collect()));
        }
        if !self.hosts.is_empty() {
            out.insert(
                "hosts".to_owned(),
                self.hosts.iter().map(|(name, found)| (name.clone(), json!(found))).collect(),
            );
        }
        if !self.upstream.is_empty() {
            out.insert("upstream".to_owned(), self.upstream.to_value());
        }
        out.insert("limits".to_owned(), self.limits.to_value());
        out.insert("ask_seconds".to_owned(), self.ask_seconds.into());
        if self.package_cache {
            out.insert("package_cache".to_owned(), true.into());
        }
        Value::Object(out)
    }

    /// Whether it can stand on a floor. Secrets of the floor are the home's: nothing that a session says may have them sent
    /// elsewhere than the home itself would send them.
    ///
    /// # Errors
    ///
    /// What cannot be said on this floor.
    pub fn check_floor(&self, floor: &Self) -> Result<(), String> {
        if let Some(name) = self.secrets.keys().find(|name| floor.secrets.contains_key(*name)) {
            return Err(format!("the secret {name} of the policy is one of this home's"));
        }
        if floor.secrets.is_empty() {
            return Ok(());
        }
        if !self.upstream.is_empty() && self.upstream != floor.upstream {
            let message = "`upstream` cannot be set: this home's own policy has secrets, which go by the home's way alone";
            return Err(message.to_owned());
        }
        let injecting = floor.rules.iter().filter(|rule| !rule.inject.is_empty());
        let injected = injecting.flat_map(|rule| &rule.hosts);
        let filled = floor.secrets.values().flat_map(|secret| &secret.hosts);
        let patterns: Vec<_> = injected.chain(filled).collect();
        for (name, addresses) in &self.hosts {
            let host = Host::Name(name.clone());
            let is_led = floor.hosts.get(name) == Some(addresses);
            if !is_led && patterns.iter().any(|pattern| pattern.fits(&host)) {
                return Err(format!(
                    "`hosts` cannot say where {name} is: this home's own policy sends it secrets"
                ));
            }
        }
        Ok(())
    }

    /// The same policy with a floor beneath it: the floor's rules come first, what it says of hosts and of the way out
    /// holds, and no limit is above its own.
    #[must_use]
    pub fn with_floor(&self, floor: &Self) -> Self {
        let mut both = self.clone();
        for rule in &mut both.rules {
            rule.floor = false;
        }
        let beneath = floor.rules.iter().cloned().map(|rule| Rule { floor: true, ..rule });
        both.rules.splice(0..0, beneath);
        for (name, secret) in &floor.secrets {
            both.secrets.insert(name.clone(), secret.clone());
        }
        for (name, addresses) in &floor.hosts {
            both.hosts.insert(name.clone(), addresses.clone());
        }
        if !floor.upstream.is_empty() {
            both.upstream = floor.upstream.clone();
        }
        both.limits = both.limits.at_most(floor.limits);
        both.ask_seconds = both.ask_seconds.min(floor.ask_seconds);
        both
    }

    /// The TCP ports it is about, in order; always 80 and 443, so that denials can be told.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let ranges = self.rules.iter().filter(|rule| rule.action != Action::Deny);
        let ranges = ranges.flat_map(|rule| &rule.ports);
        let mut ports: BTreeSet<u16> =
            ranges.flat_map(|range| range.first..=range.last).take(MAX_PORTS * 4).collect();
        ports.extend([80, 443]);
        ports.into_iter().collect()
    }

    /// Patterns of the hosts whose TLS is read.
    #[must_use]
    pub fn read_hosts(&self) -> Vec<HostPattern> {
        let reads = |rule: &&Rule| {
            let tls = rule.protocol != Some(Protocol::Http);
            tls && rule.is_read()
        };
        let by_rule = self.rules.iter().filter(reads).flat_map(|rule| &rule.hosts);
        let by_secret = self.secrets.values().flat_map(|secret| &secret.hosts);
        let mut hosts: Vec<HostPattern> = Vec::new();
        for pattern in by_rule.chain(by_secret) {
            if !hosts.contains(pattern) {
                hosts.push(pattern.clone());
            }
        }
        hosts
    }

    /// What no rule or field alone can know.
    fn check(&self) -> Result<(), (Vec<PathSegment>, String)> {
        let key = |key: &str| PathSegment::Key(key.to_owned());
        let ports = self.ports().len();
        if ports > MAX_PORTS {
            let message =
                format!("at most {MAX_PORTS} ports, 80 and 443 among them; here are {ports}");
            return Err((vec![key("rules")], message));
        }
        let mut used = BTreeSet::new();
        for (index, rule) in self.rules.iter().enumerate() {
            for (at, inject) in rule.inject.iter().enumerate() {
                for name in inject.value.secrets() {
                    used.insert(name);
                    if !self.secrets.contains_key(name) {
                        let path = vec![
                            key("rules"),
                            PathSegment::Index(index),
                            key("inject"),
                            PathSegment::Index(at),
                        ];
                        return Err((
                            path,
                            format!("no secret is called `{name}`; name it under `secrets`"),
                        ));
                    }
                }
            }
        }
        for (name, secret) in &self.secrets {
            if !used.contains(name.as_str()) && secret.hosts.is_empty() {
                let message = "no rule uses this secret; inject it, or give it `env` and `hosts`";
                return Err((vec![key("secrets"), key(name)], message.to_owned()));
            }
        }
        Ok(())
    }
}

impl FromInput for Policy {
    fn from_input(input: Input<'_>) -> Checked<Self> {
        let usual = Self::default();
        let mut fields = input.fields("Policy")?;
        fields.forbid_extra();
        let version = fields.or_with("version", (), |input| match input.int()? {
            1 => Ok(()),
            other => {
                Err(input.value_error(format!("version {other} is unknown; this is version 1")))
            }
        });
        let rules = fields.or_with("rules", Vec::new(), |input| {
            let rules = input.list(Rule::from_input)?;
            if rules.len() > MAX_RULES {
                return Err(input.value_error(format!("a policy has at most {MAX_RULES} rules")));
            }
            Ok(rules)
        });
        let secrets = fields.or_with("secrets", IndexMap::new(), |input| {
            let secrets = input.map(SecretSpec::from_input)?;
            match secrets.keys().find(|name| !secret::is_variable(name)) {
                Some(name) => Err(input.value_error(format!(
                    "{name:?} is no name of a secret; use letters, digits and _"
                ))),
                None => Ok(secrets),
            }
        });
        let hosts = fields.or_with("hosts", IndexMap::new(), |input| {
            let mut read = IndexMap::new();
            for (name, addresses) in input.map(addresses)? {
                let name =
                    settings::own_name(&name).map_err(|message| input.value_error(message))?;
                read.insert(name, addresses);
            }
            Ok(read)
        });
        let upstream = fields.or_default("upstream");
        let limits = fields.or_default("limits");
        let ask = fields.or_with("ask_seconds", usual.ask_seconds, settings::bounded(1, MAX_ASK));
        let package_cache = fields.or("package_cache", false);
        let policy = fields.build(|| {
            version?;
            Some(Self {
                rules: rules?,
                secrets: secrets?,
                hosts: hosts?,
                upstream: upstream?,
                limits: limits?,
                ask_seconds: ask?,
                package_cache: package_cache?,
            })
        })?;
        policy.check().map_err(|(path, message)| Invalid::Refused { path, message })?;
        Ok(policy)
    }
}

/// One address, or several.
fn addresses(input: Input<'_>) -> Checked<Vec<IpAddr>> {
    let one = |input: Input<'_>| {
        let text = String::from_input(input)?;
        text.parse().map_err(|_| input.value_error(format!("{text:?} is no address")))
    };
    if input.value().is_string() {
        return one(input).map(|address| vec![address]);
    }
    input.list(one)
}

/// A part of a query as it is meant: decoded, a plus as a space.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
                rest = &after[2..];
            }
            (b'+', ..) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, ..) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
