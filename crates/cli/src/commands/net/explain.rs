//! `bastide net explain`

use std::path::PathBuf;
use std::process::ExitCode;

use bastide::egress::resolve_presets;
use bastide::model::policy::{Explanation, Flow, Host, HttpRequest, NormalPath, Policy, Verdict};
use bastide::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::args::policy::{self, environment};
use crate::clients::clients;
use crate::ui::{Table, Ui};

/// What a verdict is to whoever asks by exit status.
const DENIED: u8 = 1;
const ASKED: u8 = 3;

/// Say what a policy makes of a connection or a request, and why: exit status 0 if it is allowed, 1 if it is denied, 3 if
/// somebody is asked
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// The session (unless --policy is given), and a URL or HOST:PORT
    #[arg(value_name = "[ID] URL", required = true, num_args = 1..=2)]
    words: Vec<String>,

    /// Policy to ask instead of a session's
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Method of the request
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    method: String,

    /// Print an object
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(ui: &mut Ui, args: ExplainArgs) -> Result<ExitCode> {
    let (policy, target) = match (&args.policy, args.words.as_slice()) {
        (Some(path), [target]) => {
            (resolve_presets(&policy::read(path)?, &environment()).await?, target)
        }
        (None, [id, target]) => {
            let clients = clients()?;
            let id = clients.find(id)?;
            (clients.of(&id)?.egress_policy(&id).await?, target)
        }
        _ => {
            let message = "explain takes a session and a URL, or --policy FILE and a URL";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
    };
    let target = Target::parse(target)?;
    let http = target.path.as_ref().map(|path| HttpRequest {
        method: &args.method,
        path,
        query: target.query.as_deref(),
        headers: &[],
    });
    let (host, port) = (&target.host, target.port);
    let mut found = policy.explain(&Flow { host, port, http });
    // Whether anybody reads it is settled for the connection, before there is a request.
    found.read = policy.explain(&Flow { host, port, http: None }).read;
    if args.json {
        ui.json(&object(&policy, &found))?;
    } else {
        print(ui, &policy, &found)?;
    }
    Ok(ExitCode::from(match found.verdict {
        Verdict::Allow => 0,
        Verdict::Deny => DENIED,
        Verdict::Ask => ASKED,
    }))
}

/// What is asked about.
struct Target {
    host: Host,
    port: u16,
    path: Option<NormalPath>,
    query: Option<String>,
}

impl Target {
    /// Reads `https://host/path`, `http://…`, or `host:port`.
    fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::new(ErrorKind::InvalidInput, format!("{text:?} is no place: {why}"))
                .with_hint("write https://HOST/PATH, http://HOST/PATH or HOST:PORT")
        };
        let (usual, rest, is_http) = match text.split_once("://") {
            Some(("https", rest)) => (Some(443), rest, true),
            Some(("http", rest)) => (Some(80), rest, true),
            Some((scheme, _)) => return Err(wrong(format!("{scheme} is not known"))),
            None => (None, text, false),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        if !is_http && !after.is_empty() {
            return Err(wrong("a path needs http:// or https://".to_owned()));
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                let port = port.parse::<u16>().ok().filter(|port| *port > 0);
                (host, Some(port.ok_or_else(|| wrong("that is no port".to_owned()))?))
            }
            _ => (authority, usual),
        };
        let port = port.ok_or_else(|| wrong("it has no port".to_owned()))?;
        let host = Host::parse(host).map_err(wrong)?;
        let after = after.split('#').next().unwrap_or_default();
        let (path, query) = match after.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (after, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let path = match is_http {
            true => {
                let path = NormalPath::parse(path);
                Some(path.map_err(|bad| wrong(bad.as_str().to_owned()))?)
            }
            false => None,
        };
        Ok(Self { host, port, path, query })
    }
}

fn hosts_of(policy: &Policy, rule: usize) -> String {
    let hosts = policy.rules.get(rule).map(|rule| rule.hosts.as_slice()).unwrap_or_default();
    hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn print(ui: &mut Ui, policy: &Policy, found: &Explanation) -> Result<()> {
    let mut table = Table::new(&["WHAT", "IS"]);
    let mut row = |what: &str, is: String| table.row([what.to_owned(), is]);
    row("decision", found.verdict.as_str().to_owned());
    row("why", found.why.as_str().to_owned());
    if let Some((number, rule)) = found.rule.and_then(|at| Some((at, policy.rules.get(at)?))) {
        let line = if rule.line > 0 { format!(", line {}", rule.line) } else { String::new() };
        let whose = if rule.floor { " of this home" } else { "" };
        let hosts = hosts_of(policy, number);
        row("rule", format!("{}{whose}{line}: {} {hosts}", number + 1, rule.action.as_str()));
        if let Some(reason) = &rule.reason {
            row("reason", reason.clone());
        }
    }
    row("protocol", found.protocol.as_str().to_owned());
    row("content", if found.read { "read" } else { "passed through" }.to_owned());
    found.secrets.iter().for_each(|secret| row("secret", secret.clone()));
    for (number, fit) in found.looked_at.iter().enumerate() {
        let hosts = hosts_of(policy, number);
        row("looked at", format!("{}: {hosts}: {}", number + 1, fit.as_str()));
    }
    ui.table(&table)
}

fn object(policy: &Policy, found: &Explanation) -> Value {
    let rule = |number: usize| {
        let rule = policy.rules.get(number)?;
        Some(json!({
            "number": number + 1,
            "line": (rule.line > 0).then_some(rule.line),
            "floor": rule.floor,
            "reason": rule.reason,
            "rule": rule.to_value(),
        }))
    };
    let looked_at = found.looked_at.iter().enumerate();
    let looked_at: Vec<_> =
        looked_at.map(|(at, fit)| json!({"number": at + 1, "fit": fit.as_str()})).collect();
    json!({
        "decision": found.verdict.as_str(),
        "why": found.why.as_str(),
        "rule": found.rule.and_then(rule),
        "protocol": found.protocol.as_str(),
        "read": found.read,
        "secrets": found.secrets,
        "looked_at": looked_at,
    })
}
