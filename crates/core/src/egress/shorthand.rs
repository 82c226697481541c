//! Policies in a few words: places that may be reached, and secrets for one host each.

use bastide_model::policy::{
    Action, Flow, Host, HostPattern, Policy, PortRange, Rule, SecretSource, SecretSpec, Verdict,
};

use crate::Error;

/// What is wrong with such words.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShorthandError {
    /// A place that is none.
    Allow {
        /// What was written.
        text: String,
        /// Why it is none.
        why: String,
    },
    /// A secret that is none. What was written for its source is not told: it may be the secret itself.
    Secret {
        /// Its name.
        name: String,
        /// Why it is none.
        why: String,
    },
    /// What they make together.
    Policy(Error),
}

/// A policy with more places (`HOST`, `HOST:PORT`, or a preset such as `@packages`), which come before its own rules, and
/// with more secrets (a name, and `SOURCE@HOST`), each of which stands as a placeholder in the variable of its name.
///
/// # Errors
///
/// The first word that means nothing, or what is wrong with all of it.
pub fn with_shorthand(
    mut policy: Policy,
    allow: &[String],
    secrets: &[(&str, &str)],
) -> Result<Policy, ShorthandError> {
    let rule = |text: &String| {
        allow_rule(text).map_err(|why| ShorthandError::Allow { text: text.clone(), why })
    };
    let allowed: Vec<_> = allow.iter().map(rule).collect::<Result<_, _>>()?;
    policy.rules.splice(0..0, allowed);
    for (name, source) in secrets {
        let wrong = |why: String| ShorthandError::Secret { name: (*name).to_owned(), why };
        let spec = secret(name, source).map_err(wrong)?;
        check_reached(&policy, &spec).map_err(wrong)?;
        policy.secrets.insert((*name).to_owned(), spec);
    }
    // As it would be read.
    Policy::from_value(&policy.to_value()).map_err(ShorthandError::Policy)?;
    Ok(policy)
}

/// A rule that allows a place.
///
/// # Errors
///
/// Why it is no place.
pub fn allow_rule(text: &str) -> Result<Rule, String> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            let port: u16 = port.parse().map_err(|_| format!("{port:?} is no port"))?;
            (host, Some(port))
        }
        _ => (text, None),
    };
    let mut rule = Rule::new(Action::Allow, vec![HostPattern::parse(host)?]);
    match port {
        Some(0) => return Err("0 is no port".to_owned()),
        Some(port) => rule.ports = vec![PortRange::one(port)],
        None => {}
    }
    Ok(rule)
}

fn secret(name: &str, text: &str) -> Result<SecretSpec, String> {
    let (source, host) = text.rsplit_once('@').ok_or("it names no host")?;
    let (from, host) = (SecretSource::parse(source)?, HostPattern::parse(host)?);
    Ok(SecretSpec { from, env: Some(name.to_owned()), hosts: vec![host] })
}

/// A secret for a host that nothing allows would never be of use.
fn check_reached(policy: &Policy, secret: &SecretSpec) -> Result<(), String> {
    for pattern in &secret.hosts {
        let HostPattern::Name(name) = pattern else { continue };
        let Ok(host) = Host::parse(name) else { continue };
        let found = policy.explain(&Flow { host: &host, port: 443, http: None });
        if found.verdict == Verdict::Deny {
            return Err(format!("no rule lets commands reach {name}"));
        }
    }
    Ok(())
}
