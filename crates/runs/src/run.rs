//! A run from its beginning to its end.

use std::time::Duration;

use bastide::{Condition, Error, ErrorKind, Result};
use serde_json::Value;

use crate::agents::{Agent, EventSummary, StreamFormat};
use crate::backend::RunBackend;
use crate::stream::Listener;
use crate::types::{CommandResult, RunArtifacts, RunConfig, RunResult, RunSession};
use crate::workspace::check_names;

/// How long an agent may take to say its version.
const VERSION: Duration = Duration::from_secs(30);

/// How much of what a check said is kept, in characters; the log has all of it.
const CHECK_OUTPUT: usize = 4000;

/// The exit code of a program that is not there.
const NOT_FOUND: i32 = 127;

/// Runs an agent: prepares, runs, collects, and cleans up whatever happened.
///
/// # Errors
///
/// If a key that the agent needs is missing, or the run cannot be prepared, is lost, or cannot be collected or cleaned up. An agent that fails is
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
    // What the agent cannot do is told before anything starts.
    agent.spec.command(prompt, config)?;
    require_credentials(agent, backend, config)?;
    check_names(&config.outputs)?;
    let session = backend.prepare(agent, config).await?;
    let mut config = config.clone();
    config.is_confined = backend.confines(&session);
    let worked = match agent.spec.command(prompt, &config) {
        Ok(command) => work(agent, backend, &session, &command, &config, listener).await,
        Err(error) => Err(error),
    };
    let cleaned = backend.cleanup(&session).await;
    let result = worked?;
    cleaned?;
    Ok(result)
}

/// Refuses to start an agent without the keys that it cannot work without.
fn require_credentials(agent: &Agent, backend: &dyn RunBackend, config: &RunConfig) -> Result<()> {
    let is_set = |wanted: &str| {
        let own = agent.spec.env.iter();
        let given = config.env.iter().map(|(name, value)| (name, value));
        own.chain(given).any(|(name, value)| name == wanted && !value.is_empty())
    };
    let missing = agent.spec.missing_credentials(|name| is_set(name) || backend.provides(name));
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the agent {} needs {} inside", agent.spec.name, missing.join(", "));
    Err(Error::new(ErrorKind::InvalidInput, message).with_condition(Condition::CredentialsMissing(
        missing.into_iter().map(str::to_owned).collect(),
    )))
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
    // What was interrupted is not judged.
    let is_cancelled = result.metadata.get("reason").is_some_and(|reason| reason == "cancelled");
    if let Some(line) = config.check.as_ref().filter(|_| !is_cancelled) {
        let checked = check(backend, session, line, config).await?;
        result.metadata.insert("check".to_owned(), checked);
    }
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

/// Whether the agent did well: the exit code of the check, and the end of what it said.
async fn check(
    backend: &dyn RunBackend,
    session: &RunSession,
    line: &str,
    config: &RunConfig,
) -> Result<Value> {
    let command = ["sh", "-c", line].map(str::to_owned);
    let config = RunConfig { timeout: config.timeout, ..RunConfig::default() };
    let said = backend.run(session, &command, &config, &mut Listener::none()).await?;
    let output = [said.stdout, said.stderr].concat();
    let skipped = output.chars().count().saturating_sub(CHECK_OUTPUT);
    let end: String = output.chars().skip(skipped).collect();
    Ok(serde_json::json!({"exit_code": said.returncode, "output": end}))
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
