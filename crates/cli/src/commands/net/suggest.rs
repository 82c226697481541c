//! `bastide net suggest`

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use bastide::model::policy::{Flow, Host, HttpRequest, NormalPath, Policy, Protocol, Verdict};
use bastide::{ErrorKind, Result};
use serde_json::{Value, json};

use super::log::{decisions, is_denied, session, text};
use crate::clients::clients;
use crate::config;
use crate::ui::Ui;

/// As much of a path is on record.
const MAX_PATH: usize = 1024;

/// Print rules that would have allowed what was refused
#[derive(Debug, clap::Args)]
pub(super) struct SuggestArgs {
    /// The session
    #[arg(value_name = "ID")]
    id: String,

    /// Print an array of rules
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(ui: &mut Ui, args: &SuggestArgs) -> Result<ExitCode> {
    let home = config::home()?;
    let id = session(&home, &args.id)?;
    let clients = clients()?;
    // What a policy allows by now needs no other rule; a session that is gone has none.
    let now = match clients.of(&id) {
        Ok(client) => match client.egress_policy(&id).await {
            Ok(policy) => Some(policy),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound) => None,
            Err(error) => return Err(error),
        },
        Err(_) => None,
    };
    let rules = suggestions(&decisions(&home, &id)?, now.as_ref());
    if args.json {
        ui.json(&Value::Array(rules))?;
        return Ok(ExitCode::SUCCESS);
    }
    if rules.is_empty() {
        ui.note("nothing was refused for want of a rule");
        return Ok(ExitCode::SUCCESS);
    }
    ui.line("rules:")?;
    rules.iter().flat_map(lines).try_for_each(|line| ui.line(&line))?;
    Ok(ExitCode::SUCCESS)
}

/// A rule as lines of YAML. What stands in them came from inside, so it is in quotes.
fn lines(rule: &Value) -> Vec<String> {
    let fields = rule.as_object().into_iter().flatten();
    let line = |(at, (key, value)): (usize, (&String, &Value))| {
        format!("{} {key}: {value}", if at == 0 { "-" } else { " " })
    };
    fields.enumerate().map(line).collect()
}

/// Something that was refused.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RefusedTarget<'a> {
    host: &'a str,
    port: u64,
    protocol: &'a str,
}

/// The rules that would have allowed what no rule was for, or nobody answered: no more than that, and each once.
fn suggestions(all: &[Value], now: Option<&Policy>) -> Vec<Value> {
    let wanted =
        |note: &&Value| is_denied(note) && matches!(text(note, "why"), "no_rule" | "ask_timeout");
    let mut places: BTreeMap<RefusedTarget<'_>, BTreeSet<(&str, &str)>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for note in all.iter().filter(wanted) {
        let (host, protocol) = (text(note, "host"), text(note, "protocol"));
        let port = note.get("port").and_then(Value::as_u64).unwrap_or_default();
        if protocol == "dns" {
            names.insert(host);
            continue;
        }
        let request = (text(note, "method"), text(note, "path"));
        if !is_allowed(now, host, port, request) {
            places.entry(RefusedTarget { host, port, protocol }).or_default().insert(request);
        }
    }
    // A name that was only asked for: how it would have gone on nobody knows.
    names.retain(|name| {
        let known = places.keys().any(|place| place.host == *name);
        !known && !now.is_some_and(|policy| policy.may_allow_name(name))
    });
    let by_name = names.into_iter().map(|name| json!({"allow": name}));
    // Where another port is suggested besides, each rule is for its own.
    let is_alone = |place: &RefusedTarget<'_>| {
        places.keys().filter(|other| other.host == place.host).count() == 1
    };
    let rules = places.iter().map(|(place, requests)| rule(place, requests, is_alone(place)));
    let rules = rules.chain(by_name);
    // Whatever is no rule, as an address that stood for a name, helps nobody.
    let is_rule = |rule: &Value| {
        let is_ours = rule["allow"].as_str().is_some_and(is_stand_in);
        !is_ours && Policy::from_value(&json!({"rules": [rule]})).is_ok()
    };
    rules.filter(is_rule).collect()
}

fn rule(place: &RefusedTarget<'_>, requests: &BTreeSet<(&str, &str)>, is_alone: bool) -> Value {
    let mut rule = json!({"allow": place.host});
    let usual = u16::try_from(place.port).map(Protocol::usual);
    let http = http(requests);
    if !is_alone || !http.is_empty() || !matches!(place.port, 80 | 443) {
        rule["ports"] = json!([place.port]);
    }
    if usual.is_ok_and(|usual| usual.as_str() != place.protocol) {
        rule["protocol"] = place.protocol.into();
    }
    if !http.is_empty() {
        rule["http"] = http.into();
    }
    rule
}

/// Requests as conditions: the paths of each method. None if connections were refused, and no requests.
fn http(requests: &BTreeSet<(&str, &str)>) -> Vec<Value> {
    let mut methods: BTreeMap<&str, Option<Vec<&str>>> = BTreeMap::new();
    for (method, path) in requests {
        if method.is_empty() {
            return Vec::new();
        }
        let paths = methods.entry(method).or_insert_with(|| Some(Vec::new()));
        // Such a path would mean others as well, or is not whole.
        if path.contains('*') || path.len() >= MAX_PATH || !path.starts_with('/') {
            *paths = None;
        } else if let Some(paths) = paths {
            paths.push(path);
        }
    }
    let condition = |(method, paths): (&str, Option<Vec<&str>>)| match paths {
        Some(paths) => json!({"methods": [method], "paths": paths}),
        None => json!({"methods": [method]}),
    };
    methods.into_iter().map(condition).collect()
}

fn is_allowed(now: Option<&Policy>, host: &str, port: u64, (method, path): (&str, &str)) -> bool {
    let (Some(policy), Ok(host), Ok(port)) = (now, Host::parse(host), u16::try_from(port)) else {
        return false;
    };
    let path = NormalPath::parse(path).ok().filter(|_| !method.is_empty());
    let http = path.as_ref().map(|path| HttpRequest { method, path, query: None, headers: &[] });
    policy.explain(&Flow { host: &host, port, http }).verdict == Verdict::Allow
}

/// Whether an address is one of those that stand for names inside.
fn is_stand_in(host: &str) -> bool {
    let address = host.parse::<std::net::Ipv4Addr>();
    address.is_ok_and(|address| matches!(address.octets(), [198, 18 | 19, ..]))
}

#[cfg(test)]
mod tests {
    use bastide::model::document::Format;

    use super::*;

    fn note(host: &str, port: u16, protocol: &str, why: &str, request: (&str, &str)) -> Value {
        json!({"decision": "deny", "why": why, "host": host, "port": port, "protocol": protocol,
            "method": request.0, "path": request.1})
    }

    #[test]
    fn suggests_each_place_once_and_nothing_that_a_rule_refused() {
        let none = ("", "");
        let all = [
            note("a.org", 443, "tls", "no_rule", none),
            note("a.org", 443, "tls", "no_rule", none),
            note("a.org", 53, "dns", "no_rule", none),
            note("only-asked.org", 53, "dns", "no_rule", none),
            note("a.org", 5432, "tcp", "no_rule", none),
            note("late.org", 443, "tls", "ask_timeout", none),
            note("b.org", 443, "tls", "rule", none),
            json!({"decision": "allow", "why": "rule", "host": "c.org", "port": 443}),
        ];
        assert_eq!(
            suggestions(&all, None),
            [
                json!({"allow": "a.org", "ports": [443]}),
                json!({"allow": "a.org", "ports": [5432]}),
                json!({"allow": "late.org"}),
                json!({"allow": "only-asked.org"}),
            ]
        );
    }

    #[test]
    fn suggests_no_more_than_was_asked_for() {
        let all = [
            note("a.org", 443, "tls", "no_rule", ("POST", "/v1/things")),
            note("a.org", 443, "tls", "no_rule", ("GET", "/v1/a")),
            note("a.org", 443, "tls", "no_rule", ("GET", "/v1/b")),
            note("a.org", 8080, "http", "no_rule", ("GET", "/a*")),
        ];
        let rules = suggestions(&all, None);
        let get = json!({"methods": ["GET"], "paths": ["/v1/a", "/v1/b"]});
        let post = json!({"methods": ["POST"], "paths": ["/v1/things"]});
        let last = json!({"allow": "a.org", "ports": [8080], "protocol": "http", "http": [{"methods": ["GET"]}]});
        assert_eq!(rules, [json!({"allow": "a.org", "ports": [443], "http": [get, post]}), last]);
        let text = rules.iter().flat_map(lines).collect::<Vec<_>>().join("\n");
        Policy::parse("policy.yaml", &format!("rules:\n{text}\n"), Format::Yaml).unwrap();
    }

    #[test]
    fn suggests_nothing_that_is_no_rule_or_holds_already() {
        let none = ("", "");
        let all = [
            note("198.18.3.4", 443, "tls", "no_rule", none),
            note("", 0, "tcp", "no_rule", none),
            note("_ldap._tcp.corp", 53, "dns", "no_rule", none),
            note("a\nb", 53, "dns", "no_rule", none),
            note("a.org", 443, "tls", "no_rule", none),
            note("b.org", 53, "dns", "no_rule", none),
        ];
        let now = "rules:\n- allow: [a.org, b.org]\n";
        let now = Policy::parse("policy.yaml", now, Format::Yaml).unwrap();
        let found = suggestions(&all, Some(&now));
        assert!(found.iter().all(|rule| rule["allow"] == "_ldap._tcp.corp"), "{found:?}");
    }
}
