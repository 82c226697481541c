//! Area `shell_tool`: the tools a model uses.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read as _};

use bastide_model::error::raise;
use bastide_model::paths::{PathUse, SandboxWorkspaceScope, WorkspacePathPolicy};
use bastide_model::pty::PtyExecUpdate;
use bastide_model::tools::{
    ExecCall, ExecCommandRun, ExecOutcome, ExecStep, FILESYSTEM_TOOLS, ImageRun, MAX_IMAGE_BYTES,
    PtySupport, Response, SHELL_TOOLS, SHELL_TOOLS_WITHOUT_PTY, Shell, ShellMode, Start,
    WriteStdinRun, detect_image_mime_type, normalize_output, prepend_notice,
    resolve_workdir_command, tool_definition,
};
use bastide_model::{Error, ErrorClass, ErrorKind, Manifest, Result, lax};
use serde_json::{Map, Value, json};

use super::case::{decode_base64, malformed};
use super::paths::{Disk, grants};
use super::{Case, Handler, errors, tree};

pub(crate) const FUNCTIONS: &[(&str, Handler)] = &[
    ("format_response", format_response),
    ("normalize_output", |case| {
        Ok(normalize_output(&case.bytes("stdout_b64")?, &case.bytes("stderr_b64")?).into())
    }),
    (
        "prepend_notice",
        |case| Ok(prepend_notice(case.text("output")?, case.text("notice")?).into()),
    ),
    ("resolve_shell", |case| {
        let mode = if case.flag("login", true)? { ShellMode::Login } else { ShellMode::Plain };
        Ok(Shell::resolve(case.optional_text("shell")?, mode).to_json())
    }),
    ("resolve_workdir_command", |case| {
        let (policy, scope) = (policy(case)?, scope(case)?);
        let workdir = case.optional_text("workdir")?;
        Ok(resolve_workdir_command(&policy, &scope, case.text("command")?, workdir)?.into())
    }),
    ("exec_command_invoke", exec_command),
    ("write_stdin_invoke", write_stdin),
    ("tool_schema", |case| {
        let tool = tool_definition(case.text("tool")?);
        Ok(tool.ok_or_else(|| malformed("tool", "a known tool"))?.to_json())
    }),
    ("capability_tools", |case| {
        match (case.text("capability")?, case.flag("supports_pty", false)?) {
            ("shell", true) => Ok(json!(SHELL_TOOLS)),
            ("shell", false) => Ok(json!(SHELL_TOOLS_WITHOUT_PTY)),
            _ => Ok(json!(FILESYSTEM_TOOLS)),
        }
    }),
    ("detect_image_mime_type", |case| {
        Ok(json!(detect_image_mime_type(case.text("path")?, &case.bytes("payload_b64")?)))
    }),
    ("view_image_invoke", view_image),
];

fn scope(case: &Case<'_>) -> Result<SandboxWorkspaceScope> {
    SandboxWorkspaceScope::from_cwd(case.optional_text("cwd")?)
}

fn policy(case: &Case<'_>) -> Result<WorkspacePathPolicy> {
    let manifest: Manifest = match case.get("manifest") {
        Value::Null => Manifest::default(),
        manifest => lax::read(manifest)?,
    };
    WorkspacePathPolicy::new(manifest.root.as_str(), manifest.extra_path_grants)
}

fn show(case: &Case<'_>, response: &Response) -> Result<String> {
    let chunk_id = case.optional_text("chunk_id")?.unwrap_or("c0ffee");
    let wall_time = case.get("wall_time_seconds").as_f64().unwrap_or(0.0);
    Ok(response.text(chunk_id, wall_time))
}

fn format_response(case: &Case<'_>) -> Result<Value> {
    let response = Response {
        output: case.text("output")?.to_owned(),
        exit_code: case.get("exit_code").as_i64(),
        process_id: case.get("process_id").as_i64(),
        original_token_count: case.get("original_token_count").as_i64(),
    };
    Ok(show(case, &response)?.into())
}

/// What the session of a case answers, or what it raises.
fn raised(answer: &Value) -> Result<()> {
    let Some(raise) = answer.get("raise") else { return Ok(()) };
    let class = raise["class"].as_str().unwrap_or_default();
    let empty = Map::new();
    match class {
        "TimeoutError" => {
            Err(Error::new(ErrorKind::Timeout, "timed out").with_class(ErrorClass::TimeoutError))
        }
        "RuntimeError" | "ValueError" | "TypeError" => {
            let message = raise["args"][0].as_str().unwrap_or_default();
            let mut kwargs = Map::new();
            kwargs.insert("message".to_owned(), message.into());
            Err(errors::build(class, &kwargs)?)
        }
        _ => Err(errors::build(class, raise["kwargs"].as_object().unwrap_or(&empty))?),
    }
}

fn pty_update(answer: &Value) -> Result<PtyExecUpdate> {
    raised(answer)?;
    Ok(PtyExecUpdate {
        process_id: answer["process_id"].as_i64(),
        output: decode_base64(answer["output_b64"].as_str().unwrap_or_default())?,
        exit_code: answer["exit_code"].as_i64(),
        original_token_count: answer["original_token_count"].as_i64(),
    })
}

fn exec_result(answer: &Value) -> Result<ExecOutcome> {
    raised(answer)?;
    let stream = |key: &str| decode_base64(answer[key].as_str().unwrap_or_default());
    Ok(ExecOutcome::Exec {
        stdout: stream("stdout_b64")?,
        stderr: stream("stderr_b64")?,
        exit_code: answer["exit_code"].as_i64().unwrap_or_default(),
    })
}

fn pty_support(case: &Case<'_>) -> Result<PtySupport> {
    Ok(if case.flag("supports_pty", true)? { PtySupport::Interactive } else { PtySupport::None })
}

fn exec_command(case: &Case<'_>) -> Result<Value> {
    let pty = pty_support(case)?;
    let user = case.get("user");
    let raw = case.text("raw_input")?;
    let mut run = match ExecCommandRun::start(raw, &policy(case)?, &scope(case)?, pty)? {
        Start::Run(run) => run,
        Start::Refuse(text) => return Ok(json!({"output": text, "calls": []})),
    };
    let mut calls = Vec::new();
    let mut call = run.call();
    loop {
        let outcome = match &call {
            ExecCall::PtyStart { command, shell, tty, yield_time_s, max_output_tokens } => {
                calls.push(json!({
                    "call": "pty_exec_start",
                    "command": [command],
                    "shell": shell.to_json(),
                    "user": user,
                    "tty": tty,
                    "yield_time_s": yield_time_s,
                    "max_output_tokens": max_output_tokens,
                }));
                pty_update(case.get("pty_result")).map(ExecOutcome::Pty)
            }
            ExecCall::Exec { command, shell, timeout_s } => {
                calls.push(json!({
                    "call": "exec",
                    "command": [command],
                    "timeout": timeout_s,
                    "shell": shell.to_json(),
                    "user": user,
                }));
                exec_result(case.get("exec_result"))
            }
        };
        match run.answer(outcome)? {
            ExecStep::Call(next) => call = next,
            ExecStep::Answer(response) => {
                return Ok(json!({"output": show(case, &response)?, "calls": calls}));
            }
        }
    }
}

fn write_stdin(case: &Case<'_>) -> Result<Value> {
    let pty = pty_support(case)?;
    let run = match WriteStdinRun::start(case.text("raw_input")?, pty)? {
        Start::Run(run) => run,
        Start::Refuse(text) => return Ok(json!({"output": text, "calls": []})),
    };
    let call = run.call();
    let calls = json!([{
        "call": "pty_write_stdin",
        "session_id": call.session_id,
        "chars": call.chars,
        "yield_time_s": call.yield_time_s,
        "max_output_tokens": call.max_output_tokens,
    }]);
    let response = run.answer(pty_update(case.get("pty_result")))?;
    Ok(json!({"output": show(case, &response)?, "calls": calls}))
}

fn view_image(case: &Case<'_>) -> Result<Value> {
    let scratch = case.scratch.path()?;
    tree::create(scratch, case.list("tree")?)?;
    let root = scratch.join("ws");
    let grants = grants(case.list("grants")?)?;
    let policy = WorkspacePathPolicy::new(root.to_string_lossy().as_ref(), grants)?;
    let run = match ImageRun::start(case.text("raw_input")?, &policy, &scope(case)?)? {
        Start::Run(run) => run,
        Start::Refuse(text) => return Ok(json!({"text": text})),
    };
    let content =
        policy.normalize_path_resolving(run.path(), PathUse::Read, &Disk).and_then(|path| {
            let mut content = Vec::new();
            let limit = u64::try_from(MAX_IMAGE_BYTES).unwrap_or(u64::MAX) + 1;
            let read = File::open(path.as_str())
                .and_then(|file| file.take(limit).read_to_end(&mut content));
            match read {
                Ok(_) => Ok(content),
                Err(error) if error.kind() == IoKind::NotFound => {
                    Err(raise::workspace_read_not_found(path))
                }
                Err(error) => Err(raise::workspace_archive_read(path).with_source(error)),
            }
        });
    Ok(match run.answer(content).to_json() {
        Value::String(text) => json!({"text": text}),
        image => json!({"image": image}),
    })
}
