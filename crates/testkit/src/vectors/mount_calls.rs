//! What of recorded mounts is compared: the runs of the programs that mount, and the files they are
//! given. How a sandbox is asked whether it has a program, and the shell around a command, are each
//! side's own.

use serde_json::{Map, Value, json};

/// The programs that mount and unmount.
const HELPERS: &[&str] = &["rclone", "mount-s3", "blobfuse2", "mount", "umount", "fusermount3"];

/// Reduces an answer, or an error, to the part that binds.
pub(super) fn helper_calls(answer: &Value) -> Value {
    let Some(answer) = answer.as_object() else { return answer.clone() };
    let mut kept = Map::new();
    for (key, value) in answer {
        match key.as_str() {
            "calls" => {
                let calls = value.as_array().map(|calls| projected(calls)).unwrap_or_default();
                kept.insert(key.clone(), calls.into());
            }
            "skip_paths" => {}
            "result" => {
                kept.insert(key.clone(), helper_calls(value));
            }
            "context" => {
                kept.insert(key.clone(), without_shell(value));
            }
            _ => {
                kept.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(kept)
}

/// The command of an error without the shell around it.
fn without_shell(context: &Value) -> Value {
    let mut context = context.clone();
    let script = context.get("command").and_then(Value::as_str);
    if let Some(script) = script.and_then(|command| command.strip_prefix("sh -lc ")) {
        let command = words(script_command(script)).join(" ");
        context["command"] = command.into();
    }
    context
}

fn projected(calls: &[Value]) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    let mut env_files: Vec<(String, Value)> = Vec::new();
    for call in calls {
        if call["op"] == "write" {
            let (path, content) = (call["path"].as_str(), call["content"].as_str());
            match path.filter(|path| path.ends_with(".env")) {
                Some(path) => env_files.push((path.to_owned(), exported(content))),
                None => kept.push(call.clone()),
            }
            continue;
        }
        if call.get("first_of").is_some() {
            kept.push(call.clone());
            continue;
        }
        let argv: Vec<&str> =
            call["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match argv.as_slice() {
            ["chmod", mode, _] => {
                if let Some(file) = kept.last_mut() {
                    file["mode"] = (*mode).into();
                }
            }
            ["sh", "-lc", script] => kept.extend(run_of_script(script, &env_files)),
            [program, ..] if HELPERS.contains(program) => kept.push(call.clone()),
            _ => {}
        }
    }
    kept
}

/// The run that a script of the reference amounts to, if it runs one of the programs.
fn run_of_script(script: &str, env_files: &[(String, Value)]) -> Option<Value> {
    let is_probe = script.contains("--help") || script.starts_with("command -v");
    let command = script_command(script);
    let alternatives: Vec<Vec<String>> =
        command.split(" || ").filter(|part| *part != "true").map(words).collect();
    let program = alternatives.first()?.first()?;
    if is_probe || !HELPERS.contains(&program.as_str()) {
        return None;
    }
    if matches!(program.as_str(), "fusermount3" | "umount") {
        return Some(json!({"op": "exec", "first_of": alternatives}));
    }
    let mut call = json!({"op": "exec", "argv": alternatives.first()?});
    if script.starts_with("for i in 1 2 3;") {
        call["attempts"] = 3.into();
    }
    if let Some((file, _)) = script.strip_prefix(". ").and_then(|rest| rest.split_once(" && ")) {
        let env = env_files.iter().find(|(path, _)| file.ends_with(path.as_str()));
        call["env"] = env.map(|(_, env)| env.clone())?;
    }
    Some(call)
}

/// The command in a script, without what the shell does around it.
fn script_command(script: &str) -> &str {
    let inside = |start: &str, end: &str| {
        let (_, rest) = script.split_once(start)?;
        rest.split_once(end).map(|(command, _)| command)
    };
    if let Some(command) = inside("; do ", " && exit 0;") {
        return command.strip_prefix("timeout 10s ").unwrap_or(command);
    }
    if let Some(command) = inside(" && exec ", " >") {
        return command;
    }
    let command = script.strip_suffix(" &").unwrap_or(script);
    command.strip_suffix(" >/dev/null 2>&1 || true").unwrap_or(command)
}

/// What a file of `export` lines sets.
fn exported(content: Option<&str>) -> Value {
    let words = words(content.unwrap_or_default());
    let pairs = words.iter().filter_map(|word| word.split_once('='));
    Value::Object(pairs.map(|(name, value)| (name.to_owned(), value.into())).collect())
}

/// The words of a command line, as a shell cuts it.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ' | '\n') => words.extend(word.take()),
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_command_in_the_shell() {
        let run =
            |script: &str| run_of_script(script, &[("x.env".to_owned(), json!({"A": "b c"}))]);
        let cases = [
            ("command -v rclone >/dev/null 2>&1 || test -x /usr/local/bin/rclone", None),
            ("pkill -f -- 'rclone (mount|serve nfs) r:' >/dev/null 2>&1 || true", None),
            ("umount /a >/dev/null 2>&1 || true", Some(json!({"first_of": [["umount", "/a"]]}))),
            (
                "fusermount3 -u '/a b' || umount '/a b'",
                Some(json!({"first_of": [["fusermount3", "-u", "/a b"], ["umount", "/a b"]]})),
            ),
            ("rclone serve nfs r: &", Some(json!({"argv": ["rclone", "serve", "nfs", "r:"]}))),
            (
                ". /w/x.env && exec mount-s3 b /a >/w/o 2>/w/e",
                Some(json!({"argv": ["mount-s3", "b", "/a"], "env": {"A": "b c"}})),
            ),
            (
                "for i in 1 2 3; do mount -v /a && exit 0; sleep 1; done; exit 1",
                Some(json!({"argv": ["mount", "-v", "/a"], "attempts": 3})),
            ),
        ];
        for (script, want) in cases {
            let want = want.map(|mut want| {
                want["op"] = "exec".into();
                want
            });
            assert_eq!(run(script), want, "script {script}");
        }
        assert_eq!(exported(Some("export A='b'\"'\"'c'\n")), json!({"A": "b'c"}));
    }
}
