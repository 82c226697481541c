//! Presets: lists of places that this machine's own settings say.

use super::Policy;
use super::host::HostPattern;
use super::rule::{Action, PortRange, Protocol, Rule};
use crate::{Error, ErrorKind, Result};

/// The presets, and what each is about. `packages` is all of them.
pub const PRESETS: [(&str, &str); 7] = [
    ("pip", "the index of pip"),
    ("npm", "the registry of npm"),
    ("cargo", "the registry of cargo"),
    ("go", "the proxy and the checksums of Go modules"),
    ("apt", "the sources of apt"),
    ("git", "public hosts of git repositories"),
    ("packages", "all of these"),
];

/// A place that a preset stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresetHost {
    /// The host.
    pub host: HostPattern,
    /// Its port, if not the usual ones.
    pub port: Option<u16>,
    /// How connections to that port are understood.
    pub protocol: Option<Protocol>,
    /// Whether this machine's settings name it, or its name service leads there, so that it may be a private place.
    pub configured: bool,
}

impl PresetHost {
    /// The place that a URL leads to; `None` if it leads to none by HTTP.
    #[must_use]
    pub fn of_url(url: &str) -> Option<Self> {
        let url = url.strip_prefix("sparse+").unwrap_or(url);
        let (scheme, rest) = url.split_once("://")?;
        let protocol = match scheme.to_ascii_lowercase().as_str() {
            "https" => Protocol::Tls,
            "http" => Protocol::Http,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        let place = authority.rsplit('@').next()?;
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
            _ => (place, None),
        };
        let host = HostPattern::parse(host).ok()?;
        let plain = matches!(host, HostPattern::Name(_) | HostPattern::Addresses(_));
        let port = port.filter(|port| Protocol::usual(*port) != protocol);
        plain.then_some(Self { host, port, protocol: port.map(|_| protocol), configured: false })
    }

    /// The same place as one that this machine's settings name.
    #[must_use]
    pub fn configured(mut self) -> Self {
        self.configured = true;
        self
    }
}

impl Policy {
    /// The same policy with every preset replaced by the places that `resolve` says it stands for.
    ///
    /// # Errors
    ///
    /// If a preset is unknown, or stands for nothing here.
    pub fn with_presets(
        &self,
        mut resolve: impl FnMut(&str) -> Option<Vec<PresetHost>>,
    ) -> Result<Self> {
        let mut rules = Vec::new();
        for rule in &self.rules {
            let mut plain = Vec::new();
            let mut places: Vec<PresetHost> = Vec::new();
            for pattern in &rule.hosts {
                match pattern {
                    HostPattern::Preset(name) => {
                        let known = PRESETS.iter().any(|(preset, _)| preset == name);
                        let found = resolve(name).ok_or_else(|| unknown(name, known, rule.line))?;
                        places.extend(found);
                    }
                    other => plain.push(other.clone()),
                }
            }
            if !plain.is_empty() {
                rules.push(Rule { hosts: plain, ..rule.clone() });
            }
            rules.extend(rules_of(rule, places, self.package_cache));
        }
        Ok(Self { rules, ..self.clone() })
    }

    /// The presets that it names.
    #[must_use]
    pub fn presets(&self) -> Vec<&str> {
        let patterns = self.rules.iter().flat_map(|rule| &rule.hosts);
        patterns
            .filter_map(|pattern| match pattern {
                HostPattern::Preset(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

/// One rule for all places that are alike.
fn rules_of(rule: &Rule, places: Vec<PresetHost>, is_kept: bool) -> Vec<Rule> {
    let mut rules: Vec<(PresetHost, Rule)> = Vec::new();
    for place in places {
        let alike = rules.iter_mut().find(|(first, _)| {
            first.port == place.port
                && first.protocol == place.protocol
                && first.configured == place.configured
        });
        if let Some((_, made)) = alike {
            if !made.hosts.contains(&place.host) {
                made.hosts.push(place.host);
            }
            continue;
        }
        let mut made = Rule { hosts: vec![place.host.clone()], ..rule.clone() };
        made.private |= place.configured;
        if let (Some(port), true) = (place.port, rule.ports.is_empty()) {
            made.ports = vec![PortRange::one(port)];
            made.protocol = rule.protocol.or(place.protocol);
        }
        // Bytes, and what comes in the clear, are anybody's word.
        let is_read = made.action == Action::Allow
            && !matches!(made.protocol, Some(Protocol::Tcp | Protocol::Http));
        made.cache |= is_kept && is_read;
        rules.push((place, made));
    }
    rules.into_iter().map(|(_, rule)| rule).collect()
}

fn unknown(name: &str, is_known: bool, line: usize) -> Error {
    let place = if line == 0 { String::new() } else { format!(" (line {line})") };
    if is_known {
        let message = format!("the preset @{name}{place} stands for nothing on this machine");
        return Error::new(ErrorKind::InvalidInput, message)
            .with_hint("name the hosts themselves under `allow`");
    }
    let known: Vec<String> = PRESETS.iter().map(|(preset, _)| format!("@{preset}")).collect();
    Error::new(ErrorKind::InvalidInput, format!("no preset is called @{name}{place}"))
        .with_hint(format!("presets are {}", known.join(", ")))
}
