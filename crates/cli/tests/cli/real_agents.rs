//! The real `codex` and `claude`, from npm, in sandboxes: a model server of this test answers them from
//! loopback, by a script.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Home, text};

/// What the model has the agent run.
const LINE: &str = "echo written > made.txt";

/// The folder with the programs, beside what cargo builds. With the big counts it is filled if it is empty.
#[expect(clippy::print_stderr, reason = "a test that shows nothing says so")]
fn programs() -> Option<PathBuf> {
    let built = std::env::current_exe().unwrap();
    let target = built.ancestors().find(|folder| folder.ends_with("target"))?;
    let folder = target.join("agents");
    let is_there = || ["codex", "claude"].iter().all(|name| folder.join("bin").join(name).exists());
    if !is_there() && std::env::var_os("BASTIDE_TEST_FULL").is_some() {
        let npm = Command::new("npm")
            .args(["install", "--global", "--no-audit", "--no-fund", "--prefix"])
            .arg(&folder)
            .args(["--allow-scripts=@anthropic-ai/claude-code"])
            .args(["@openai/codex", "@anthropic-ai/claude-code"])
            .output();
        if let Ok(npm) = npm
            && !npm.status.success()
        {
            eprintln!("{}", text(&npm.stderr));
        }
    }
    if !is_there() {
        eprintln!("skipped: codex and claude are not in {}/bin", folder.display());
        return None;
    }
    Some(folder.join("bin"))
}

/// A model server on loopback. It ends with the test.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // Whoever goes away in the middle is nobody's business.
            std::thread::spawn(move || drop(stream.and_then(answer)));
        }
    });
    port
}

/// Answers the requests of one connection.
fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (kind, said) = match first.split(' ').nth(1).unwrap_or_default() {
            path if path.contains("count_tokens") => {
                ("application/json", "{\"input_tokens\":1}".to_owned())
            }
            path if path.contains("/responses") => ("text/event-stream", codex(&request)),
            path if path.contains("/messages") => ("text/event-stream", claude(&request)),
            _ => ("application/json", "{\"data\":[],\"models\":[]}".to_owned()),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            said.len()
        );
        writer.write_all(head.as_bytes())?;
        writer.write_all(said.as_bytes())?;
    }
}

fn events(all: &[Value]) -> String {
    let event =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    all.iter().map(event).collect()
}

/// First a command, then the last word.
fn codex(request: &Value) -> String {
    let is_done = request["input"].to_string().contains("function_call_output");
    let arguments = json!({"cmd": LINE}).to_string();
    let item = match is_done {
        true => json!({"type": "message", "role": "assistant", "id": "m1",
            "content": [{"type": "output_text", "text": "done"}]}),
        false => json!({"type": "function_call", "id": "f1", "call_id": "c1",
            "name": "exec_command", "arguments": arguments}),
    };
    let usage = json!({"input_tokens": 1, "input_tokens_details": null, "output_tokens": 1,
        "output_tokens_details": null, "total_tokens": 2});
    events(&[
        json!({"type": "response.created", "response": {"id": "r1"}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed",
            "response": {"id": "r1", "usage": usage, "output": [item]}}),
    ])
}

fn claude(request: &Value) -> String {
    let is_done = request["messages"].to_string().contains("tool_result");
    let has_shell = request["tools"].to_string().contains("\"Bash\"");
    let (block, delta, stop) = match has_shell && !is_done {
        true => (
            json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}),
            json!({"type": "input_json_delta",
                "partial_json": json!({"command": LINE, "description": "d"}).to_string()}),
            "tool_use",
        ),
        false => (
            json!({"type": "text", "text": ""}),
            json!({"type": "text_delta", "text": "done"}),
            "end_turn",
        ),
    };
    let usage = json!({"input_tokens": 1, "output_tokens": 1});
    let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "x",
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage});
    events(&[
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
            "usage": {"output_tokens": 1}}),
        json!({"type": "message_stop"}),
    ])
}

/// Runs an agent over an empty folder, and gives its report.
fn run(agent: &str, more: &[String]) -> Option<Value> {
    let programs = programs()?;
    let home = Home::new();
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().canonicalize().unwrap().join("work");
    fs::create_dir(&work).unwrap();
    let mut arguments: Vec<String> = ["agent", "run", agent, "--json", "--network", "host"]
        .iter()
        .map(|word| (*word).to_owned())
        .collect();
    arguments.extend(["--timeout", "120s", "--workspace"].map(str::to_owned));
    arguments.push(work.to_str().unwrap().to_owned());
    arguments.extend_from_slice(more);
    arguments.extend(["--", "Write a file."].map(str::to_owned));
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
    let mut command = home.command(&words);
    command.env("PATH", path).env("OPENAI_API_KEY", "k").env("ANTHROPIC_API_KEY", "k");
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let log = report["log"].as_str().and_then(|log| fs::read_to_string(log).ok());
    let said = format!("{}{}", text(&output.stderr), log.unwrap_or_default());
    assert_eq!(output.status.code(), Some(0), "{said}");
    let made = fs::read_to_string(work.join("made.txt"));
    assert_eq!(made.unwrap_or_default(), "written\n", "{said}");
    drop(fs::remove_dir_all(format!("{}-agents", home.path().display())));
    Some(report)
}

#[test]
fn the_real_codex_works_in_a_sandbox_without_one_of_its_own() {
    let port = serve();
    let provider = format!(
        "model_providers.test={{name=\"t\",base_url=\"http://127.0.0.1:{port}/v1\",\
         wire_api=\"responses\",env_key=\"OPENAI_API_KEY\"}}"
    );
    let provider = provider.as_str();
    let options = [
        "--skip-git-repo-check",
        "--model",
        "a-model",
        "-c",
        provider,
        "-c",
        "model_provider=\"test\"",
    ];
    let mut more = vec!["--pass-env".to_owned(), "OPENAI_API_KEY".to_owned()];
    more.extend(options.map(|option| format!("--agent-arg={option}")));
    if let Some(report) = run("codex", &more) {
        assert_eq!(report["changed_files"][0]["path"], "made.txt", "{report}");
        assert!(report["usage"].is_object(), "{report}");
    }
}

#[test]
fn the_real_claude_works_in_a_sandbox_and_asks_nobody() {
    let port = serve();
    let address = format!("ANTHROPIC_BASE_URL=http://127.0.0.1:{port}");
    let more = ["--pass-env", "ANTHROPIC_API_KEY", "--env", address.as_str()];
    if let Some(report) = run("claude", &more.map(str::to_owned)) {
        assert_eq!(report["changed_files"][0]["path"], "made.txt", "{report}");
        assert!(report["usage"].is_object(), "{report}");
    }
}
