//! Secrets and rules.

use std::io::{self, IsTerminal, Read};

use bastide::SessionId;
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::state::{Database, Rule, Secret, say};
use crate::{Failure, Outcome, fail};

/// The services there are.
const SERVICES: [&str; 11] = [
    "anthropic",
    "cursor",
    "droid",
    "github",
    "google",
    "groq",
    "mistral",
    "nebius",
    "openai",
    "openrouter",
    "xai",
];

const GLOBAL: &str = "global";

fn scope_of(sandbox: &str) -> String {
    format!("sandbox:{sandbox}")
}

pub(crate) fn secret(world: &Database, rest: &[String]) -> Outcome {
    let verb = rest.first().map_or("", String::as_str);
    let rest = rest.get(1..).unwrap_or_default();
    match verb {
        "set" => set_secret(world, rest),
        "ls" => list_secrets(world, rest),
        "rm" => remove_secret(world, rest),
        other => fail(format!("unknown command {other:?} for \"sbx secret\"")),
    }
}

fn set_secret(world: &Database, rest: &[String]) -> Outcome {
    let old = !world.profile.denies_at_create();
    let mut known: Vec<(&[&str], bool)> =
        vec![(&["--oauth"], false), (&["-t", "--token"], true), (&["-f", "--force"], false)];
    match old {
        true => known.push((&["-g", "--global"], false)),
        false => known.push((&["--sandbox"], true)),
    }
    let given = Arguments::parse(rest, &known, usize::MAX)?;
    let (scope, service) = match (old, given.has("-g")) {
        (true, true) => (GLOBAL.to_owned(), given.word(0, "SERVICE")?),
        (true, false) => (scope_of(given.word(0, "SANDBOX")?), given.word(1, "SERVICE")?),
        (false, _) => {
            let scope = given.value("--sandbox").map_or_else(|| GLOBAL.to_owned(), scope_of);
            (scope, given.word(0, "SERVICE")?)
        }
    };
    if !SERVICES.contains(&service) {
        return fail(format!("unknown service {service:?}"));
    }
    if let Some(name) = scope.strip_prefix("sandbox:") {
        world.sandbox(name)?;
    }
    let (kind, value) = if given.has("--oauth") {
        if service != "openai" || scope != GLOBAL {
            return fail("--oauth is for openai, and for all sandboxes");
        }
        say("Open https://auth.example/device and enter the code ABCD-EFGH")?;
        ("oauth", "oauth-token".to_owned())
    } else if let Some(token) = given.value("-t") {
        ("apikey", token.to_owned())
    } else {
        if io::stdin().is_terminal() {
            return fail("a terminal would be asked for the value");
        }
        let mut value = String::new();
        io::stdin().read_to_string(&mut value)?;
        ("apikey", value.trim_end_matches('\n').to_owned())
    };
    if value.is_empty() {
        return fail("the secret is empty");
    }
    let secret = Secret { scope, kind: kind.to_owned(), service: service.to_owned(), value };
    world.change("secrets.json", |all: &mut Vec<Secret>| {
        all.retain(|one| one.scope != secret.scope || one.service != secret.service);
        all.push(secret);
        Ok(())
    })?;
    say("Secret saved")
}

fn list_secrets(world: &Database, rest: &[String]) -> Outcome {
    let mut known: Vec<(&[&str], bool)> =
        vec![(&["-g", "--global"], false), (&["--service"], true)];
    if world.profile.has_json_everywhere() {
        known.extend([(&["--json"][..], false), (&["--sandbox"][..], true)]);
    }
    let given = Arguments::parse(rest, &known, usize::MAX)?;
    let mut all: Vec<Secret> = world.load("secrets.json")?;
    if given.has("-g") {
        all.retain(|secret| secret.scope == GLOBAL);
    }
    if let Some(service) = given.value("--service") {
        all.retain(|secret| secret.service == service);
    }
    if given.has("--json") {
        let row = |secret: &Secret| {
            json!({"scope": secret.scope, "type": secret.kind, "name": secret.service,
                   "secret": "****"})
        };
        let rows: Vec<Value> = all.iter().map(row).collect();
        let none: [Value; 0] = [];
        let list = json!({"secrets": rows, "custom_secrets": none, "shadowed_services": none,
                          "env_only_count": 0});
        return say(list.to_string());
    }
    if all.is_empty() {
        return say("No secrets found. Use `sbx secret set` to store one.");
    }
    say("SCOPE   TYPE   NAME   SECRET")?;
    for secret in all {
        say(format!("{}   {}   {}   ****", secret.scope, secret.kind, secret.service))?;
    }
    Ok(0)
}

fn remove_secret(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] =
        &[(&["-f", "--force"], false), (&["-g"], false), (&["--sandbox"], true)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let service = given.word(0, "SERVICE")?;
    if !given.has("-f") {
        return fail("removing a secret needs a confirmation, and there is no terminal");
    }
    let scope = given.value("--sandbox").map_or_else(|| GLOBAL.to_owned(), scope_of);
    let removed = world.change("secrets.json", |all: &mut Vec<Secret>| {
        let before = all.len();
        all.retain(|secret| secret.scope != scope || secret.service != service);
        Ok(before != all.len())
    })?;
    match removed {
        true => say("Secret removed"),
        false => fail(format!("secret '{service}' not found")),
    }
}

/// Forgets what belongs to a sandbox.
pub(crate) fn forget(world: &Database, sandbox: &str) -> Result<(), Failure> {
    let scope = scope_of(sandbox);
    world.change("secrets.json", |all: &mut Vec<Secret>| {
        all.retain(|secret| secret.scope != scope);
        Ok(())
    })?;
    world.change("rules.json", |all: &mut Vec<Rule>| {
        all.retain(|rule| rule.scope != scope);
        Ok(())
    })
}

/// The sentinels a sandbox has for its secrets, which are never inside.
pub(crate) fn sentinels(world: &Database, sandbox: &str) -> Result<Vec<(String, String)>, Failure> {
    let all: Vec<Secret> = world.load("secrets.json")?;
    let scope = scope_of(sandbox);
    let mut env = Vec::new();
    for secret in all.iter().filter(|secret| secret.scope == GLOBAL || secret.scope == scope) {
        let service = secret.service.to_ascii_uppercase();
        env.push((format!("{service}_API_KEY"), "proxy-managed".to_owned()));
        env.push((format!("SBX_CRED_{service}_MODE"), secret.kind.clone()));
    }
    Ok(env)
}

pub(crate) fn policy(world: &Database, rest: &[String]) -> Outcome {
    let word = |at: usize| rest.get(at).map_or("", String::as_str);
    match (word(0), word(1)) {
        ("init" | "set-default", "allow-all" | "balanced" | "deny-all") => {
            std::fs::write(world.path("initialized"), word(1))?;
            say("Policy initialized")
        }
        ("allow" | "deny", "network") => {
            add_rule(world, word(0), rest.get(2..).unwrap_or_default())
        }
        ("ls", _) => list_rules(world, rest.get(1..).unwrap_or_default()),
        ("rm", "network") => remove_rule(world, rest.get(2..).unwrap_or_default()),
        ("log", _) => log(rest.get(1..).unwrap_or_default()),
        ("check", "network") => check(world, rest.get(2..).unwrap_or_default()),
        ("reset", _) => {
            world.change("rules.json", |all: &mut Vec<Rule>| {
                all.clear();
                Ok(())
            })?;
            say("Policy reset")
        }
        _ => fail(format!("unknown command {:?} for \"sbx policy\"", word(0))),
    }
}

/// Remembers a rule.
pub(crate) fn remember(
    world: &Database,
    decision: &str,
    sandbox: Option<&str>,
    resources: Vec<String>,
) -> Result<String, Failure> {
    let id = SessionId::random().to_string();
    let scope = sandbox.map_or_else(|| GLOBAL.to_owned(), scope_of);
    let rule = Rule { id: id.clone(), scope, decision: decision.to_owned(), resources };
    world.change("rules.json", |all: &mut Vec<Rule>| {
        all.push(rule);
        Ok(())
    })?;
    Ok(id)
}

fn add_rule(world: &Database, decision: &str, rest: &[String]) -> Outcome {
    let profile = world.profile;
    let mut known: Vec<(&[&str], bool)> = Vec::new();
    if profile.scopes_by_option() {
        known.push((&["--sandbox"], true));
    } else if profile.has_scoped_rules() {
        known.push((&["-g", "--global"], false));
    }
    let given = Arguments::parse(rest, &known, usize::MAX)?;
    let by_word = profile.has_scoped_rules() && !profile.scopes_by_option() && !given.has("-g");
    let (sandbox, resources) = match by_word && given.words.len() > 1 {
        true => (Some(given.word(0, "SANDBOX")?), given.word(1, "RESOURCES")?),
        false => (given.value("--sandbox"), given.word(0, "RESOURCES")?),
    };
    if let Some(sandbox) = sandbox {
        world.sandbox(sandbox)?;
    }
    let list = resources.split(',').map(str::to_owned).collect();
    let id = remember(world, decision, sandbox, list)?;
    say(format!("Policy added: {id} ({resources})"))
}

fn list_rules(world: &Database, rest: &[String]) -> Outcome {
    let given = Arguments::parse(rest, &[(&["--json"], false), (&["--wide"], false)], usize::MAX)?;
    let all: Vec<Rule> = world.load("rules.json")?;
    let row = |rule: &Rule| {
        json!({"id": rule.id, "name": "", "policy_id": "", "scope": rule.scope,
               "applies_to": if rule.scope == GLOBAL { "all" } else { rule.scope.as_str() },
               "resource_type": "network", "decision": rule.decision,
               "resources": rule.resources, "origin": "local", "status": "active",
               "editable": true})
    };
    if given.has("--json") {
        return say(json!({"rules": all.iter().map(row).collect::<Vec<_>>()}).to_string());
    }
    for rule in all {
        say(format!("{}  {}  {}", rule.scope, rule.decision, rule.resources.join(",")))?;
    }
    Ok(0)
}

/// Removes a rule by its number, or by what it is about.
fn remove_rule(world: &Database, rest: &[String]) -> Outcome {
    let profile = world.profile;
    let mut known: Vec<(&[&str], bool)> = vec![(&["--id"], true), (&["--resource"], true)];
    if profile.scopes_by_option() {
        known.push((&["--sandbox"], true));
    } else if profile.has_scoped_rules() {
        known.push((&["-g", "--global"], false));
    }
    let given = Arguments::parse(rest, &known, usize::MAX)?;
    let by_word = given.words.first().map(String::as_str).filter(|_| !profile.scopes_by_option());
    let scope = by_word.or(given.value("--sandbox")).map_or_else(|| GLOBAL.to_owned(), scope_of);
    let (id, resources) = (given.value("--id"), given.value("--resource"));
    if id.is_none() && resources.is_none() {
        return fail("--id or --resource is missing");
    }
    let named: Vec<&str> = resources.iter().flat_map(|list| list.split(',')).collect();
    let is_meant = |rule: &Rule| {
        let is_named = |resource: &String| named.contains(&resource.as_str());
        rule.scope == scope
            && id.is_none_or(|id| rule.id == id)
            && (named.is_empty() || rule.resources.iter().any(is_named))
    };
    let removed = world.change("rules.json", |all: &mut Vec<Rule>| {
        let before = all.len();
        all.retain(|rule| !is_meant(rule));
        Ok(before - all.len())
    })?;
    match removed {
        0 => fail("no matching policy found"),
        count => say(format!("Policy removed: {count}")),
    }
}

/// What went by the proxy: there is none here, so nothing did.
fn log(rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] = &[
        (&["--json"], false),
        (&["--limit"], true),
        (&["-q", "--quiet"], false),
        (&["--type"], true),
    ];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let none: [Value; 0] = [];
    match given.has("--json") {
        true => say(json!({"blocked_hosts": none, "allowed_hosts": none}).to_string()),
        false => say("No policy log entries found."),
    }
}

/// Whether a host can be reached: a rule against it counts more than one for it.
fn check(world: &Database, rest: &[String]) -> Outcome {
    let known: &[(&[&str], bool)] = &[(&["--json"], false), (&["--sandbox"], true)];
    let given = Arguments::parse(rest, known, usize::MAX)?;
    let target = given.word(0, "TARGET")?;
    let scope = given.value("--sandbox").map(scope_of);
    let all: Vec<Rule> = world.load("rules.json")?;
    let counts = |rule: &&Rule| rule.scope == GLOBAL || Some(&rule.scope) == scope.as_ref();
    let says = |decision: &str| {
        let mut rules = all.iter().filter(counts).filter(|rule| rule.decision == decision);
        rules.any(|rule| rule.resources.iter().any(|pattern| is_of(pattern, target)))
    };
    let (denied, allowed) = (says("deny"), says("allow"));
    let kind = if denied { "explicit" } else { "implicit" };
    let answer = match allowed && !denied {
        true => json!({"allowed": true, "governance": {"active": false}}),
        false => json!({"allowed": false, "deny_kind": kind, "governance": {"active": false}}),
    };
    say(answer.to_string())?;
    Ok(u8::from(!allowed || denied))
}

/// Whether a pattern is about a host: `h`, `*.h` with one name before it, `**.h` with any, `**`, and each
/// with a port.
fn is_of(pattern: &str, target: &str) -> bool {
    let split = |text: &str| -> (String, Option<String>) {
        match text.rsplit_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port.to_owned())),
            None => (text.to_owned(), None),
        }
    };
    let ((pattern, port), (host, target_port)) = (split(pattern), split(target));
    let same_port = port.is_none() || port == target_port;
    let is_host = match pattern.as_str() {
        "**" => true,
        pattern => match (pattern.strip_prefix("**."), pattern.strip_prefix("*.")) {
            (Some(end), _) => host.ends_with(&format!(".{end}")),
            (None, Some(end)) => host
                .strip_suffix(&format!(".{end}"))
                .is_some_and(|before| !before.is_empty() && !before.contains('.')),
            (None, None) => pattern == host,
        },
    };
    same_port && is_host
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn patterns_mean_what_is_documented() {
        for (pattern, target, want) in [
            ("example.com", "example.com:443", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "a.www.example.com", false),
            ("*.example.com", "example.com", false),
            ("**.example.com", "a.www.example.com", true),
            ("example.com:443", "example.com:80", false),
            ("**", "anything:1", true),
        ] {
            assert_eq!(is_of(pattern, target), want, "{pattern} {target}");
        }
    }
}
