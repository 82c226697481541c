//! `bastide agent ls` and `bastide agent show`

use std::process::ExitCode;

use bastide::Result;
use bastide_runs::agents::AgentSpec;
use serde_json::{Value, json};

use crate::ui::{Table, Ui};

pub(super) fn all(ui: &mut Ui, json: bool) -> Result<ExitCode> {
    let mut specs = Vec::new();
    for name in AgentSpec::names() {
        specs.push(AgentSpec::named(name)?);
    }
    if json {
        ui.json(&specs.iter().map(object).collect())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["NAME", "PROGRAM", "KEYS", "DESCRIPTION"]);
    for spec in &specs {
        let keys: Vec<_> = spec.credentials.iter().map(|key| key.env.as_str()).collect();
        table.row([
            spec.name.clone(),
            spec.command.program.clone(),
            keys.join(","),
            spec.description.clone(),
        ]);
    }
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn one(ui: &mut Ui, spec: &AgentSpec, json: bool) -> Result<ExitCode> {
    if json {
        ui.json(&object(spec))?;
        return Ok(ExitCode::SUCCESS);
    }
    let call = &spec.command;
    let mut table = Table::new(&["WHAT", "VALUE"]);
    let mut row = |what: &str, value: String| {
        if !value.is_empty() {
            table.row([what.to_owned(), value]);
        }
    };
    row("name", spec.name.clone());
    row("description", spec.description.clone());
    row("command", command(spec).join(" "));
    row("version", call.version.join(" "));
    row("install", call.install.clone());
    for key in &spec.credentials {
        let need = match (&key.one_of, key.required) {
            (Some(_), true) => "one of several",
            (_, true) => "needed",
            (_, false) => "if there is one",
        };
        row("key", format!("{} ({}, {need})", key.env, key.service));
    }
    for host in &spec.hosts {
        row("host", host.clone());
    }
    for (name, value) in &spec.env {
        row("variable", format!("{name}={value}"));
    }
    let files = &spec.files;
    row("instructions", files.instructions.clone().unwrap_or_default());
    row("skills", files.skill.clone().unwrap_or_default());
    row("tools", files.mcp.clone().unwrap_or_default());
    ui.table(&table)?;
    Ok(ExitCode::SUCCESS)
}

fn command(spec: &AgentSpec) -> Vec<String> {
    let call = &spec.command;
    [std::slice::from_ref(&call.program), &call.args, &call.confined, &call.prompt].concat()
}

fn object(spec: &AgentSpec) -> Value {
    let key = |key: &bastide_runs::agents::Credential| {
        json!({
            "env": key.env,
            "service": key.service,
            "hosts": key.hosts,
            "required": key.required,
            "one_of": key.one_of,
        })
    };
    json!({
        "name": spec.name,
        "description": spec.description,
        "program": spec.command.program,
        "command": command(spec),
        "version": spec.command.version,
        "install": spec.command.install,
        "credentials": spec.credentials.iter().map(key).collect::<Value>(),
        "hosts": spec.hosts,
        "env": spec.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Value>(),
        "files": {
            "instructions": spec.files.instructions,
            "skill": spec.files.skill,
            "mcp": spec.files.mcp,
        },
    })
}
