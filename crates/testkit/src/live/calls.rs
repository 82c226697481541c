//! The calls of scenarios, on a session of ours.

use std::fs;
use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use bastide::compat::{ManifestPart, PtyLimits};
use bastide::{
    Command, ExtractOptions, FileInfo, ResumeOptions, Session, ToolAnswer, Tools, WriteOptions,
};
use bastide_model::pty::PtyExecUpdate;
use bastide_model::text::shell_quote;
use bastide_model::{Error, ErrorKind, Result};
use futures::future::join_all;
use serde_json::{Value, json};

use super::ours::{ScenarioState, answered};
use crate::vectors::{decode_base64, encode_base64};

/// Performs one call.
pub(super) async fn perform(stage: &mut ScenarioState<'_>, step: &Value) -> Result<Value> {
    match name_of(step) {
        "open" => {
            let manifest = stage.manifest()?;
            let made = stage.client.create_unstarted(&manifest, stage.options()?).await?;
            let made = stage.session.insert(made);
            match stage.line["start"] == false {
                true => Ok(Value::Null),
                false => made.start().await.map(|()| Value::Null),
            }
        }
        "resume" => {
            let options =
                ResumeOptions::default().manifest(stage.manifest()?).create(stage.options()?);
            let state = match step["from"].as_str() {
                Some(name) => stage.states.get(name).cloned().unwrap_or_default(),
                None => session(stage)?.state_json()?,
            };
            // A session that is let go ends only if it was not stopped before.
            let resumed = stage.client.resume_state(state, options).await;
            stage.recorder.take();
            stage.session = Some(resumed?);
            Ok(Value::Null)
        }
        "state" => {
            let state = session(stage)?.state_json()?;
            let name = step["as"].as_str().unwrap_or_default().to_owned();
            stage.states.insert(name, state.clone());
            Ok(state)
        }
        "delete" => {
            let id = session(stage)?.id().clone();
            stage.client.delete(&id).await.map(|_| Value::Null)
        }
        "persist" => {
            let archive = session(stage)?.compat().persist_workspace().await?;
            let mut bytes = Vec::new();
            let mut file = archive.into_file().map_err(failed)?;
            file.read_to_end(&mut bytes).map_err(failed)?;
            let reported = json!({"tar": shown(&bytes)});
            let name = step["as"].as_str().unwrap_or_default().to_owned();
            stage.archives.insert(name, bytes);
            Ok(reported)
        }
        "hydrate" => {
            let data = match step["from"].as_str() {
                Some(name) => stage.archives.get(name).cloned().unwrap_or_default(),
                None => content(step)?,
            };
            session(stage)?.compat().hydrate_workspace(data).await.map(|()| Value::Null)
        }
        "saved" => {
            let mut found = fs::read_dir(stage.tmp().join("snapshots")).map_err(failed)?;
            let archive = found.next().ok_or_else(|| failed("no snapshot"))?.map_err(failed)?;
            Ok(json!({"tar": shown(&fs::read(archive.path()).map_err(failed)?)}))
        }
        "host" => {
            let mut command = std::process::Command::new("sh");
            command.arg("-c").arg(text(step, "line")?).current_dir(stage.tmp());
            command.stdout(Stdio::null());
            let status = command.status().map_err(failed)?;
            Ok(status.code().into())
        }
        "pty_start" => {
            let command = command(step)?;
            let command = match step["tty"] == true {
                true => command.terminal(24, 80),
                false => command,
            };
            let update = session(stage)?.compat().pty_exec_start(command, limits(step)).await?;
            Ok(updated(stage, &update))
        }
        "pty_write" => {
            let process = step["process"].as_i64().unwrap_or(stage.process);
            let chars = text(step, "chars")?;
            let update =
                session(stage)?.compat().pty_write_stdin(process, chars, limits(step)).await?;
            Ok(updated(stage, &update))
        }
        op => on_session(session(stage)?, op, step).await,
    }
}

/// Calls that need nothing but the session.
async fn on_session(session: &Session, op: &str, step: &Value) -> Result<Value> {
    let nothing = |(): ()| Value::Null;
    match op {
        "start" => session.start().await.map(nothing),
        "stop" => session.save().await.map(|_| Value::Null),
        "shutdown" => session.shutdown().await.map(nothing),
        "close" => session.close().await.map(nothing),
        "running" => session.is_running().await.map(Value::from),
        "together" => {
            let steps = step["steps"].as_array().into_iter().flatten();
            let done = steps.map(|step| Box::pin(on_session(session, name_of(step), step)));
            Ok(join_all(done).await.into_iter().map(answered).collect())
        }
        "exec" => {
            let result = session.compat().exec_result(command(step)?).await?;
            Ok(json!({
                "exit_code": result.exit_code,
                "stdout": shown(&result.stdout),
                "stderr": shown(&result.stderr),
            }))
        }
        "resolve_exposed_port" => {
            let port = step["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            let found = session.compat().resolve_exposed_port(port.unwrap_or_default()).await?;
            let (host, port) = (found.host, found.port);
            Ok(json!({"host": host, "port": port, "tls": found.tls, "query": found.query}))
        }
        "skip" => {
            let path =
                session.compat().register_persist_workspace_skip_path(text(step, "path")?)?;
            Ok(path.to_string().into())
        }
        "apply_manifest" => {
            let part = match step["only_ephemeral"] == true {
                true => ManifestPart::Ephemeral,
                false => ManifestPart::Whole,
            };
            let done = session.compat().apply_manifest(part).await?;
            let mut files = done.files;
            files.sort_by(|one, other| one.path.cmp(&other.path));
            let file = |file: &bastide::MaterializedFile| json!({"path": file.path, "sha256": file.sha256});
            Ok(files.iter().map(file).collect())
        }
        "apply_patch" => {
            Tools::new(session).apply_patch(text(step, "patch")?).await.map(Value::from)
        }
        "exec_command" | "write_stdin" | "view_image" => {
            let arguments = step["arguments"].to_string();
            Ok(match Tools::new(session).call(op, &arguments).await? {
                ToolAnswer::Image(url) => json!({"image_url": url}),
                ToolAnswer::Text(text) => text.into(),
                _ => Value::Null,
            })
        }
        "pty_terminate_all" => {
            session.compat().pty_terminate_all().await;
            Ok(Value::Null)
        }
        op => on_files(session, op, step).await,
    }
}

/// Calls about files.
async fn on_files(session: &Session, op: &str, step: &Value) -> Result<Value> {
    let nothing = |(): ()| Value::Null;
    let bytes = |content: bytes::Bytes| shown(&content);
    let files = match step["user"].as_str() {
        Some(user) => session.files_as(user),
        None => session.files(),
    };
    match op {
        "read" => files.read(text(step, "path")?).await.map(bytes),
        "read_bounded" => {
            let most = step["max_bytes"].as_u64().unwrap_or_default();
            files.read_bounded(text(step, "path")?, most).await.map(bytes)
        }
        "write" => files.write(text(step, "path")?, content(step)?).await.map(nothing),
        "write_new" => {
            let new = WriteOptions::default().new_file();
            files.write_with(text(step, "path")?, content(step)?, new).await.map(nothing)
        }
        "ls" => {
            let mut listed = files.ls(text(step, "path")?).await?;
            listed.sort_by(|one, other| one.path.cmp(&other.path));
            Ok(listed.iter().map(entry).collect())
        }
        "mkdir" if step["parents"] == true => {
            files.mkdir_all(text(step, "path")?).await.map(nothing)
        }
        "mkdir" => files.mkdir(text(step, "path")?).await.map(nothing),
        "rm" if step["recursive"] == true => files.rm_all(text(step, "path")?).await.map(nothing),
        "rm" => files.rm(text(step, "path")?).await.map(nothing),
        "mv" => files.mv(text(step, "source")?, text(step, "destination")?).await.map(nothing),
        "same_file" => {
            let (left, right) = (text(step, "left")?, text(step, "right")?);
            let same = match step["follow"] == false {
                true => files.same_entry(left, right).await,
                false => files.same_file(left, right).await,
            };
            same.map(Value::from)
        }
        "extract" => {
            let options = match step["scheme"].as_str() {
                Some(scheme) => ExtractOptions::default().scheme(scheme),
                None => ExtractOptions::default(),
            };
            files.extract(text(step, "path")?, content(step)?, options).await.map(nothing)
        }
        _ => Err(Error::new(ErrorKind::Internal, format!("no call `{op}`"))),
    }
}

fn name_of(step: &Value) -> &str {
    step["op"].as_str().unwrap_or_default()
}

fn session<'a>(stage: &'a ScenarioState<'_>) -> Result<&'a Session> {
    stage.session.as_ref().ok_or_else(|| failed("there is no session"))
}

fn text<'a>(step: &'a Value, key: &str) -> Result<&'a str> {
    step[key].as_str().ok_or_else(|| failed(format!("`{key}` is not text")))
}

fn content(step: &Value) -> Result<Vec<u8>> {
    if let Some(encoded) = step["content_b64"].as_str() {
        return decode_base64(encoded);
    }
    let times = step["times"].as_u64().and_then(|times| usize::try_from(times).ok());
    Ok(step["content"].as_str().unwrap_or_default().repeat(times.unwrap_or(1)).into_bytes())
}

fn command(step: &Value) -> Result<Command> {
    let words = step["command"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let words: Vec<&str> = words.collect();
    let mut command = match &step["shell"] {
        Value::Bool(false) => Command::new(words),
        Value::Array(shell) => {
            let shell = shell.iter().filter_map(Value::as_str).map(str::to_owned);
            Command::new(shell.chain([line(&words)]))
        }
        _ => Command::shell(&line(&words)),
    };
    if let Some(seconds) = step["timeout"].as_f64() {
        command = command.timeout(Duration::try_from_secs_f64(seconds).map_err(failed)?);
    }
    Ok(match step["user"].as_str() {
        Some(user) => command.user(user),
        None => command,
    })
}

/// The words of a command as one line for a shell: a single word is one already.
fn line(words: &[&str]) -> String {
    match words {
        [line] => (*line).to_owned(),
        words => words.iter().map(|word| shell_quote(word)).collect::<Vec<_>>().join(" "),
    }
}

fn limits(step: &Value) -> PtyLimits {
    PtyLimits {
        yield_time_s: step["yield_time_s"].as_f64(),
        max_output_tokens: step["max_output_tokens"].as_i64(),
    }
}

fn updated(stage: &mut ScenarioState<'_>, update: &PtyExecUpdate) -> Value {
    stage.process = update.process_id.unwrap_or(stage.process);
    json!({
        "output": shown(&update.output),
        "exit_code": update.exit_code,
        "running": update.process_id.is_some(),
        "original_token_count": update.original_token_count,
    })
}

fn entry(info: &FileInfo) -> Value {
    let entry = info.to_entry();
    json!({
        "path": entry.path,
        "permissions": entry.permissions.to_string(),
        "size": if info.is_dir() { 0 } else { info.size },
        "kind": entry.kind.as_str(),
    })
}

fn shown(bytes: &[u8]) -> Value {
    json!({"b64": encode_base64(bytes)})
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}
