//! The policy of a network that an agent works in: the places its file names, and its keys, which stay outside.

use bastide::Result;
use bastide::model::policy::{SecretSource, SecretSpec};
use bastide_runs::agents::AgentSpec;

use crate::args::policy::{allow, checked};
use crate::args::session::SessionPlan;
use crate::config;

/// Lets an agent reach what its file names. A key that is set and was not passed in is shown to its hosts by the proxy;
/// inside there is a placeholder.
pub(super) fn add_agent(
    spec: &AgentSpec,
    passed: &[(String, String)],
    session_plan: &mut SessionPlan,
) -> Result<()> {
    let mut policy = session_plan.options.policy.take().unwrap_or_default();
    for host in &spec.hosts {
        policy.rules.push(allow(host)?);
    }
    for credential in &spec.credentials {
        let name = &credential.env;
        let is_inside = passed.iter().any(|(known, _)| known == name);
        if is_inside || policy.secrets.contains_key(name) || config::variable(name).is_none() {
            continue;
        }
        // They are named with their ports, as the places it may reach are.
        let rules: Vec<_> =
            credential.hosts.iter().map(|host| allow(host)).collect::<Result<_>>()?;
        if rules.is_empty() {
            continue;
        }
        let hosts = rules.iter().flat_map(|rule| rule.hosts.clone()).collect();
        policy.rules.extend(rules);
        let from = SecretSource::Env(name.clone());
        policy.secrets.insert(name.clone(), SecretSpec { from, env: Some(name.clone()), hosts });
        session_plan.provided.push(name.clone());
    }
    session_plan.options.policy = Some(checked(policy)?);
    Ok(())
}
