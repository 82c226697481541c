//! Commands and processes of the reference's local sessions, through ours.

use std::time::Duration;

use bastide::compat::PtyLimits;
use bastide::{Command, CreateOptions, Session};
use bastide_model::environment::Environment;
use bastide_model::{Manifest, Result, lax};
use serde_json::{Value, json};

use super::case::{encode_base64, malformed};
use super::compare::error_object;
use super::session::{with_session, workspace};
use super::{Case, Handler, tree};

pub(crate) const FUNCTIONS: &[(&str, Handler)] =
    &[("unix_local_exec_live", exec_live), ("unix_local_pty", pty), ("unix_local_create", create)];

fn exec_live(case: &Case<'_>) -> Result<Value> {
    tree::create(case.scratch.path()?, case.list("tree")?)?;
    let environment: Environment = match case.get("environment") {
        Value::Null => Environment::default(),
        environment => lax::read(environment)?,
    };
    let manifest = Manifest { root: workspace(case)?, environment, ..Manifest::default() };
    let words = case.texts("command")?;
    let command = match case.flag("shell", true)? {
        true => Command::shell(words.first().copied().unwrap_or_default()),
        false => Command::new(words),
    };
    let command = match case.get("timeout").as_f64() {
        Some(seconds) => command.timeout(Duration::from_secs_f64(seconds)),
        None => command,
    };
    with_session(case, &manifest, CreateOptions::default(), async |session| {
        let result = session.compat().exec_result(command).await?;
        Ok(json!({
            "stdout_b64": encode_base64(&result.stdout),
            "stderr_b64": encode_base64(&result.stderr),
            "exit_code": result.exit_code,
        }))
    })
}

fn pty(case: &Case<'_>) -> Result<Value> {
    let manifest = Manifest { root: workspace(case)?, ..Manifest::default() };
    let steps = case.list("steps")?;
    with_session(case, &manifest, CreateOptions::default(), async |session| {
        let (mut answers, mut started) = (Vec::new(), None);
        for step in steps {
            let answer = take(session, step, &mut started).await;
            answers.push(answer.unwrap_or_else(|error| json!({"error": error_object(&error)})));
        }
        session.compat().pty_terminate_all().await;
        Ok(Value::Array(answers))
    })
}

async fn take(session: &Session, step: &Value, started: &mut Option<i64>) -> Result<Value> {
    let limits = PtyLimits {
        yield_time_s: step["yield_time_s"].as_f64(),
        max_output_tokens: step["max_output_tokens"].as_i64(),
    };
    let update = match (step["start"].as_str(), step["write"].as_str()) {
        (Some(line), _) => {
            let command = Command::shell(line);
            let command = match step["tty"] == true {
                true => command.terminal(24, 80),
                false => command,
            };
            let update = session.compat().pty_exec_start(command, limits).await?;
            *started = update.process_id;
            update
        }
        (None, Some(chars)) => {
            let process = step["session"].as_i64().or(*started).unwrap_or(-1);
            session.compat().pty_write_stdin(process, chars, limits).await?
        }
        (None, None) => return Err(malformed("steps", "a start or a write")),
    };
    Ok(json!({
        "output_b64": encode_base64(&update.output),
        "exit_code": update.exit_code,
        "running": update.process_id.is_some(),
        "original_token_count": update.original_token_count,
    }))
}

fn create(case: &Case<'_>) -> Result<Value> {
    let manifest: Manifest = lax::read(case.get("manifest"))?;
    let ports = case.get("exposed_ports").as_array().into_iter().flatten();
    let ports = ports.filter_map(|port| port.as_u64().and_then(|port| u16::try_from(port).ok()));
    let options = CreateOptions::default().unix_local().exposed_ports(ports);
    with_session(case, &manifest, options, async |session| {
        let mut state = session.state_json()?;
        for id in [&["session_id"][..], &["snapshot", "id"]] {
            let mut at = &mut state;
            for key in id {
                at = &mut at[*key];
            }
            *at = "<session-id>".into();
        }
        Ok(state)
    })
}
