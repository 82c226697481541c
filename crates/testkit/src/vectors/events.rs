//! Area `events`: what a session says it did.

use std::collections::HashMap;

use bastide_model::events::{
    Event, EventTime, PayloadPolicy, WorkspaceLog, WorkspaceLogOptions, safe_decode,
};
use bastide_model::lax::{self, Dump as _};
use bastide_model::{Error, Result};
use serde_json::{Value, json};
use uuid::Uuid;

use super::case::{decode_base64, malformed};
use super::compare::error_object;
use super::{Case, Handler};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("validate_event", |case| Ok(event(case.get("event"))?.to_json())),
    ("event_json_line", |case| Ok(event(case.get("event"))?.json_line().into())),
    ("event_http_body", |case| Ok(event(case.get("event"))?.http_body().into())),
    ("apply_payload_policy", apply_payload_policy),
    ("event_payload_policy", |case| policy(case.get("policy"))?.effective().dump()),
    ("safe_decode", |case| {
        Ok(safe_decode(&case.bytes("data_b64")?, case.integer("max_chars")?.into()).into())
    }),
    ("workspace_jsonl_sink", workspace_jsonl_sink),
];

/// The session of cases that do not name one.
const SESSION: Uuid = Uuid::from_u128(0x1234_5678_1234_5678_1234_5678_1234_5678);

fn event(value: &Value) -> Result<Event> {
    Event::read(value, Uuid::nil(), EventTime::from_unix_micros(0))
}

fn policy(value: &Value) -> Result<PayloadPolicy> {
    match value {
        Value::Null => Ok(PayloadPolicy::default()),
        value => lax::read(value),
    }
}

fn apply_payload_policy(case: &Case<'_>) -> Result<Value> {
    let mut event = event(case.get("event"))?;
    if let Some(finish) = &mut event.finish {
        let stream = |key: &str| case.optional_text(key)?.map(decode_base64).transpose();
        finish.stdout_bytes = stream("stdout_b64")?;
        finish.stderr_bytes = stream("stderr_b64")?;
    }
    let mut by_op = HashMap::new();
    for (op, value) in case.get("payload_policy_by_op").as_object().into_iter().flatten() {
        by_op.insert(op.clone(), policy(value)?);
    }
    let sink = match case.get("sink_policy") {
        Value::Null => None,
        value => Some(policy(value)?),
    };
    let policy = policy(case.get("payload_policy"))?.for_sink(&by_op, event.op, sink);
    Ok(json!({"policy": policy.dump()?, "line": policy.apply(&event).json_line()}))
}

fn workspace_jsonl_sink(case: &Case<'_>) -> Result<Value> {
    let defaults = WorkspaceLogOptions::default();
    let options = WorkspaceLogOptions {
        workspace_relpath: case
            .optional_text("workspace_relpath")?
            .map_or(defaults.workspace_relpath, str::to_owned),
        ephemeral: case.flag("ephemeral", false)?,
        flush_every: case.get("flush_every").as_i64().unwrap_or(defaults.flush_every),
        max_bytes: case.get("max_bytes").as_i64(),
    };
    let mut log = WorkspaceLog::new(&options, SESSION)?;
    let file = format!("/workspace/{}", log.path());
    let mut existing = case.get("files")[&file].as_str().unwrap_or_default().to_owned();
    let mut steps = Vec::new();
    for (index, value) in case.list("events")?.iter().enumerate() {
        let running = case.get("running").get(index).and_then(Value::as_bool).unwrap_or(true);
        let event = event(value)?;
        let written = log.record(&event).and_then(|due| match due && running {
            true => write(&mut log, &mut existing),
            false => Ok(json!([])),
        });
        steps.push(match written {
            Ok(writes) => json!({"writes": writes}),
            Err(error) => json!({"writes": [], "error": error_object(&error)}),
        });
    }
    let skip_paths: Vec<_> = log.skip_path().iter().map(|path| path.as_str()).collect();
    Ok(json!({"path": log.path().as_str(), "skip_paths": skip_paths, "steps": steps}))
}

fn write(log: &mut WorkspaceLog, existing: &mut String) -> Result<Value, Error> {
    let limit = log.read_limit().unwrap_or(usize::MAX).min(existing.len());
    let Some(content) = log.content(&existing.as_bytes()[..limit])? else { return Ok(json!([])) };
    log.written();
    *existing = String::from_utf8(content).map_err(|_| malformed("files", "text"))?;
    Ok(json!([{"path": log.path().as_str(), "content": existing}]))
}
