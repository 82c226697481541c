//! What becomes of connections and requests. The program that carries them, and `explain`, ask here and nowhere else.

use std::fmt;
use std::net::IpAddr;

use super::address::{AddressOwner, SpecialAddress, special_address};
use super::host::{Host, HostPattern};
use super::path::{NormalPath, text_fits};
use super::rule::{Action, HttpMatch, Protocol, Rule};
use super::{Policy, percent_decoded};

/// What a request of HTTP is decided by.
#[derive(Debug, Clone)]
pub struct HttpRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, in its normal form.
    pub path: &'a NormalPath,
    /// The query, without its question mark.
    pub query: Option<&'a str>,
    /// The headers: names in lower case, and values.
    pub headers: &'a [(String, String)],
}

/// Something that wants to go out.
#[derive(Debug, Clone)]
pub struct Flow<'a> {
    /// Whom it is for.
    pub host: &'a Host,
    /// The port.
    pub port: u16,
    /// The request, where one is decided; a connection, if none.
    pub http: Option<HttpRequest<'a>>,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may.
    Allow,
    /// It may not.
    Deny,
    /// Somebody is asked.
    Ask,
}

impl Verdict {
    /// The word on record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
        }
    }
}

/// Why something was decided as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is its word on record")]
pub enum DecisionReason {
    NoRule,
    Rule,
    Floor,
    AskTimeout,
    Private,
    SniMismatch,
    NoSni,
    WrongHost,
    NotHttp,
    BadRequest,
    SecretExfiltration,
    UpstreamTls,
    UpstreamUnreachable,
    Limit,
    EgressLost,
}

impl DecisionReason {
    /// The word on record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoRule => "no_rule",
            Self::Rule => "rule",
            Self::Floor => "floor",
            Self::AskTimeout => "ask_timeout",
            Self::Private => "private",
            Self::SniMismatch => "sni_mismatch",
            Self::NoSni => "no_sni",
            Self::WrongHost => "wrong_host",
            Self::NotHttp => "not_http",
            Self::BadRequest => "bad_request",
            Self::SecretExfiltration => "secret_exfiltration",
            Self::UpstreamTls => "upstream_tls",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::Limit => "limit",
            Self::EgressLost => "egress_lost",
        }
    }
}

impl fmt::Display for DecisionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a rule did not decide, or that it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleMatch {
    /// It decided.
    Decides,
    /// It may decide a request of this connection.
    ByRequest,
    /// It is about other hosts.
    OtherHost,
    /// It is about other ports.
    OtherPort,
    /// It understands the connection otherwise.
    OtherProtocol,
    /// It is about other requests.
    OtherRequest,
    /// A floor's rule that may refuse requests, and nothing of the connection would be read: it is denied by that.
    Unread,
}

impl RuleMatch {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Decides => "decides",
            Self::ByRequest => "decides by request",
            Self::OtherHost => "another host",
            Self::OtherPort => "another port",
            Self::OtherProtocol => "another protocol",
            Self::OtherRequest => "another method, path, query or header",
            Self::Unread => "may refuse what is not read",
        }
    }
}

/// What becomes of a connection or a request, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What becomes of it.
    pub verdict: Verdict,
    /// Why.
    pub why: DecisionReason,
    /// The rule that decided, counted from 0 in [`Policy::rules`]. For a connection that is opened because of its
    /// requests: the first rule that may allow one.
    pub rule: Option<usize>,
    /// How the connection is understood.
    pub protocol: Protocol,
    /// Whether its requests are read and decided one by one.
    pub read: bool,
    /// The rules that were looked at, in order.
    pub looked_at: Vec<RuleMatch>,
    /// The names of secrets that the decided request is given or may carry.
    pub secrets: Vec<String>,
}

impl Policy {
    /// Decides a connection, or a request on one.
    ///
    /// A request is decided by the first rule whose host, port and `http` fit. A connection is opened if some rule could
    /// allow a request on it, and read only if one of the rules up to the first unconditional one has `http` or
    /// `inject`, or if a secret's placeholder may be sent there. Connections without TLS on HTTP ports are always read.
    #[must_use]
    pub fn explain(&self, flow: &Flow<'_>) -> Explanation {
        let protocol = self.protocol_of(flow.host, flow.port);
        let mut found = Explanation {
            verdict: Verdict::Deny,
            why: DecisionReason::NoRule,
            rule: None,
            protocol,
            read: protocol == Protocol::Http,
            looked_at: Vec::new(),
            secrets: Vec::new(),
        };
        match &flow.http {
            Some(request) => self.explain_request(flow, request, &mut found),
            None => self.explain_connection(flow, &mut found),
        }
        if found.verdict == Verdict::Allow {
            found.secrets = self.secrets_of(flow.host, found.rule);
        }
        found
    }

    fn explain_connection(&self, flow: &Flow<'_>, found: &mut Explanation) {
        let mut could: Option<usize> = None;
        let mut decided: Option<usize> = None;
        for (index, rule) in self.rules.iter().enumerate() {
            let fit = fit_connection(rule, flow, found.protocol);
            found.looked_at.push(fit);
            if fit == RuleMatch::Unread {
                (found.verdict, found.rule) = (Verdict::Deny, Some(index));
                found.why = self.why(found.rule);
                return;
            }
            if !matches!(fit, RuleMatch::Decides | RuleMatch::ByRequest) {
                continue;
            }
            found.read |= rule.is_read() && (found.protocol == Protocol::Tls || !rule.cache)
                || rule.is_about_requests()
                || !rule.inject.is_empty();
            if fit == RuleMatch::ByRequest {
                if rule.action != Action::Deny {
                    could = could.or(Some(index));
                }
                continue;
            }
            decided = Some(index);
            break;
        }
        let unconditional = decided.map(|index| (index, self.rules[index].action));
        (found.verdict, found.rule) = match (unconditional, could) {
            (Some((_, Action::Allow)) | None, Some(first)) => (Verdict::Allow, Some(first)),
            (Some((index, Action::Allow)), None) => (Verdict::Allow, Some(index)),
            // Its requests are denied or asked about one by one.
            (Some((_, Action::Deny | Action::Ask)), Some(first)) => (Verdict::Allow, Some(first)),
            (Some((index, Action::Ask)), None) if found.read => (Verdict::Allow, Some(index)),
            (Some((index, Action::Ask)), None) => (Verdict::Ask, Some(index)),
            (Some((index, Action::Deny)), None) => (Verdict::Deny, Some(index)),
            (None, None) => (Verdict::Deny, None),
        };
        found.why = self.why(found.rule);
        if found.protocol == Protocol::Tls && found.verdict == Verdict::Allow {
            found.read |= self.takes_placeholder(flow.host);
        }
    }

    fn explain_request(&self, flow: &Flow<'_>, request: &HttpRequest<'_>, found: &mut Explanation) {
        found.read = true;
        for (index, rule) in self.rules.iter().enumerate() {
            let mut fit = fit_connection(rule, flow, found.protocol);
            if matches!(fit, RuleMatch::Decides | RuleMatch::ByRequest) {
                let about_paths = rule.http.iter().any(|http| !http.paths.is_empty());
                if about_paths && request.path.is_ambiguous() {
                    found.looked_at.push(RuleMatch::Decides);
                    (found.why, found.rule) = (DecisionReason::BadRequest, Some(index));
                    return;
                }
                let meant =
                    rule.http.is_empty() || rule.http.iter().any(|http| http_fits(http, request));
                fit = if meant { RuleMatch::Decides } else { RuleMatch::OtherRequest };
            }
            found.looked_at.push(fit);
            if fit == RuleMatch::Unread {
                (found.rule, found.why) = (Some(index), self.why(Some(index)));
                return;
            }
            if fit == RuleMatch::Decides {
                found.verdict = match rule.action {
                    Action::Allow => Verdict::Allow,
                    Action::Deny => Verdict::Deny,
                    Action::Ask => Verdict::Ask,
                };
                found.rule = Some(index);
                found.why = self.why(found.rule);
                return;
            }
        }
    }

    fn why(&self, rule: Option<usize>) -> DecisionReason {
        match rule.and_then(|index| self.rules.get(index)) {
            None => DecisionReason::NoRule,
            Some(rule) if rule.floor => DecisionReason::Floor,
            Some(_) => DecisionReason::Rule,
        }
    }

    /// How a connection is understood: as the first rule says that is about its host and port and does not only deny.
    fn protocol_of(&self, host: &Host, port: u16) -> Protocol {
        let about = |rule: &&Rule| rule.fits_port(port) && fits_host(rule, host);
        let said = self.rules.iter().filter(about).find_map(|rule| rule.protocol_on(port));
        said.unwrap_or_else(|| Protocol::usual(port))
    }

    /// Whether a secret's placeholder is replaced on the way to a host.
    #[must_use]
    pub fn takes_placeholder(&self, host: &Host) -> bool {
        self.secrets.values().any(|secret| secret.hosts.iter().any(|pattern| pattern.fits(host)))
    }

    fn secrets_of(&self, host: &Host, rule: Option<usize>) -> Vec<String> {
        let rule = rule.and_then(|index| self.rules.get(index));
        let injected = rule.into_iter().flat_map(|rule| &rule.inject);
        let mut names: Vec<String> =
            injected.flat_map(|inject| inject.value.secrets()).map(str::to_owned).collect();
        for (name, secret) in &self.secrets {
            if secret.hosts.iter().any(|pattern| pattern.fits(host)) {
                names.push(name.clone());
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Whether some rule could allow something to a name, so that it is given an address.
    #[must_use]
    pub fn may_allow_name(&self, name: &str) -> bool {
        let host = Host::Name(name.to_owned());
        self.rules.iter().enumerate().any(|(index, rule)| {
            let meant = rule.action != Action::Deny && fits_host(rule, &host);
            meant && !self.rules[..index].iter().any(|before| denies_all(before, &host))
        })
    }

    /// Whether a flow that `rule` allowed may lead to an address. Names lead to the public network, and elsewhere only
    /// where the rule or `hosts` says so.
    ///
    /// # Errors
    ///
    /// What the address is, if it may not.
    pub fn check_address(
        &self,
        host: &Host,
        rule: Option<usize>,
        address: IpAddr,
        owner: AddressOwner,
    ) -> Result<(), &'static str> {
        let place = match special_address(address) {
            Some(place) => place,
            None if owner == AddressOwner::ThisMachine => SpecialAddress::Other("of this machine"),
            None => return Ok(()),
        };
        let rule = rule.and_then(|index| self.rules.get(index));
        let names = |pattern: &HostPattern| match pattern {
            HostPattern::Addresses(network) => {
                network.contains(address)
                    && (place != SpecialAddress::Metadata || network.is_single())
            }
            _ => false,
        };
        let named = rule.is_some_and(|rule| rule.hosts.iter().any(names));
        let mapped = match host {
            Host::Name(name) => {
                self.hosts.get(name).is_some_and(|mapped| mapped.contains(&address))
            }
            Host::Address(_) => false,
        };
        let private = rule.is_some_and(|rule| rule.private) && place != SpecialAddress::Metadata;
        if named || mapped || private { Ok(()) } else { Err(place.as_str()) }
    }
}

/// Whether nothing behind this rule can allow anything to a host.
fn denies_all(rule: &Rule, host: &Host) -> bool {
    rule.action == Action::Deny
        && rule.ports.is_empty()
        && rule.protocol.is_none()
        && rule.http.is_empty()
        && fits_host(rule, host)
}

fn fits_host(rule: &Rule, host: &Host) -> bool {
    rule.hosts.iter().any(|pattern| pattern.fits(host))
}

/// Whether a floor's rule may refuse something on a connection, which nobody would see if nothing of it is read.
fn is_stepped_over_unread(rule: &Rule) -> bool {
    let speaks = matches!(rule.protocol, Some(Protocol::Tls | Protocol::Http));
    rule.floor && rule.action != Action::Allow && (rule.is_about_requests() || speaks)
}

/// Whether a rule decides a connection, leaving requests aside.
fn fit_connection(rule: &Rule, flow: &Flow<'_>, protocol: Protocol) -> RuleMatch {
    if !fits_host(rule, flow.host) {
        RuleMatch::OtherHost
    } else if !rule.fits_port(flow.port) {
        RuleMatch::OtherPort
    } else if protocol == Protocol::Tcp && is_stepped_over_unread(rule) {
        RuleMatch::Unread
    } else if rule.protocol_on(flow.port).is_some_and(|wanted| wanted != protocol) {
        RuleMatch::OtherProtocol
    } else if rule.is_about_requests() && protocol == Protocol::Tcp {
        // Bytes have no requests.
        RuleMatch::OtherProtocol
    } else if rule.is_about_requests() {
        RuleMatch::ByRequest
    } else {
        RuleMatch::Decides
    }
}

fn http_fits(http: &HttpMatch, request: &HttpRequest<'_>) -> bool {
    let method =
        http.methods.is_empty() || http.methods.iter().any(|method| method == request.method);
    let path = http.paths.is_empty() || http.paths.iter().any(|glob| glob.fits(request.path));
    let query = http.query.iter().all(|(name, glob)| {
        let values = query_values(request.query.unwrap_or_default(), name);
        all_fit(glob, values)
    });
    let headers = http.headers.iter().all(|(name, glob)| {
        let values = request.headers.iter().filter(|(header, _)| header == name);
        all_fit(glob, values.map(|(_, value)| value.clone()))
    });
    method && path && query && headers
}

/// Whether there is one, and every one fits: of several, nobody knows which one counts.
fn all_fit(glob: &str, values: impl Iterator<Item = String>) -> bool {
    let mut any = false;
    for value in values {
        if !text_fits(glob, &value) {
            return false;
        }
        any = true;
    }
    any
}

fn query_values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decoded(key) == name).then(|| percent_decoded(value))
    })
}
