//! A run from its beginning to its end.

use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use serde_json::Value;

use crate::agents::{Agent, EventSummary, StreamFormat};
use crate::backend::RunBackend;
use crate::shapes::{CommandResult, RunArtifacts, RunConfig, RunResult, RunSession};
use crate::stream::Listener;

/// How long an agent may take to say its version.
const VERSION: Duration = Duration::from_secs(30);

/// The exit code of a program that is not there.
const NOT_FOUND: i32 = 127;

/// Runs an agent: prepares, runs, collects, and cleans up whatever happened.
///
/// # Errors
///
/// If the run cannot be prepared, is lost, or cannot be collected or cleaned up. An agent that fails is
/// no error: its exit code is in the result.
pub async fn run(
    agent: &Agent,
    backend: &dyn RunBackend,
    prompt: &str,
    config: &RunConfig,
    listener: &mut Listener<'_>,
) -> Result<RunResult> {
    if prompt.is_empty() {
        let message = "Prompt required: say what the agent is to do";
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    let command = agent.spec.command(prompt, config)?;
    let session = backend.prepare(agent, config).await?;
    let worked = work(agent, backend, &session, &command, config, listener).await;
    let cleaned = backend.cleanup(&session).await;
    let result = worked?;
    cleaned?;
    Ok(result)
}

async fn work(
    agent: &Agent,
    backend: &dyn RunBackend,
    session: &RunSession,
    command: &[String],
    config: &RunConfig,
    listener: &mut Listener<'_>,
) -> Result<RunResult> {
    let version = version(agent, backend, session).await?;
    let mut done = backend.run(session, command, config, listener).await?;
    if done.returncode == NOT_FOUND && done.metadata.get("reason") == Some(&"not_started".into()) {
        let install = &agent.spec.command.install;
        done.stderr.push_str(&format!("{} is not installed inside", agent.spec.command.program));
        if !install.is_empty() {
            done.stderr.push_str(&format!(": {install}"));
        }
        done.stderr.push('\n');
    }
    let collected = backend.collect(session, config).await?;
    let mut result = result(agent, backend, session, done, collected, config);
    if let Some(version) = version {
        result.metadata.insert("agent_version".to_owned(), Value::from(version));
    }
    Ok(result)
}

/// What the agent says its version is, for the record.
async fn version(
    agent: &Agent,
    backend: &dyn RunBackend,
    session: &RunSession,
) -> Result<Option<String>> {
    let command = &agent.spec.command.version;
    if command.is_empty() {
        return Ok(None);
    }
    let config = RunConfig { timeout: Some(VERSION), ..RunConfig::default() };
    let said = backend.run(session, command, &config, &mut Listener::none()).await?;
    let line = said.stdout.lines().next().map(|line| line.trim().chars().take(200).collect());
    Ok(line.filter(|line: &String| said.returncode == 0 && !line.is_empty()))
}

fn result(
    agent: &Agent,
    backend: &dyn RunBackend,
    session: &RunSession,
    done: CommandResult,
    collected: RunArtifacts,
    config: &RunConfig,
) -> RunResult {
    let CommandResult { stdout, stderr, returncode, command, duration_ms, mut metadata } = done;
    let stream = &agent.spec.stream;
    let summary = match config.json_events && stream.format == StreamFormat::Jsonl {
        true => EventSummary::of(&stdout, stream),
        false => EventSummary::default(),
    };
    let said = [&stdout, &stderr].into_iter().find(|text| !text.is_empty());
    let output = summary.output.or_else(|| said.cloned()).unwrap_or_default();
    metadata.extend(collected.metadata);
    if let Some(cost) = summary.cost {
        metadata.insert("cost".to_owned(), cost);
    }
    RunResult {
        output,
        stdout,
        stderr,
        returncode,
        agent_name: agent.name.clone(),
        agent_backend: agent.spec.name.clone(),
        sandbox_backend: backend.id().to_owned(),
        sandbox_name: session.sandbox_name.clone(),
        command,
        duration_ms,
        diff: collected.diff,
        artifacts: collected.artifacts,
        events: summary.events,
        session_id: summary.session_id,
        thread_id: summary.thread_id,
        usage: summary.usage,
        metadata,
        changed_files: collected.changed_files,
        branch: collected.branch,
    }
}
