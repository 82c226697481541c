//! Area `exec_prepare`: what a command is given.

use bastide_model::{
    Environment, Error, ErrorKind, HOST_ENVIRONMENT_ALLOWLIST, HostEnvironment, Result, lax,
};
use serde_json::{Value, json};

use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("unix_local_exec_env", unix_local_exec_env),
    ("host_environment_allowlist", |_| Ok(json!(HOST_ENVIRONMENT_ALLOWLIST))),
];

fn unix_local_exec_env(case: &Case<'_>) -> Result<Value> {
    let choice = HostEnvironment::of_options(case.input)?;
    let manifest = match case.get("environment") {
        Value::Null => Environment::default(),
        environment => lax::read(environment)?,
    };
    let resolved = manifest.resolve(|name, _| {
        Err(Error::new(ErrorKind::Unsupported, format!("nobody resolves `{name}` here")))
    })?;
    let host = case.object("host_env")?.iter();
    let host =
        host.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
    let root = case.scratch.path()?.join("ws");
    let root = root.to_string_lossy();
    let environment: Value =
        choice.command_environment(host, resolved, &root).into_iter().collect();
    Ok(json!({"env": environment, "cwd": root}))
}
