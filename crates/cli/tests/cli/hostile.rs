//! Nothing from inside a sandbox acts on the terminal of whoever looks at it.

use std::process::Output;

use serde_json::Value;

use crate::harness::{Home, text};

/// A title of the window, a colour by C1, text that runs backwards, a forged line, a deletion.
const NAME: &str = "a\u{1b}]0;title\u{7}b\u{9b}31mc\u{202e}d\ne\u{7f}f\rg";

/// What a terminal does something else with than show it.
fn acts(letter: char) -> bool {
    let direction = matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    (letter.is_control() && !matches!(letter, '\n' | '\t')) || direction
}

fn check(arguments: &[&str], output: &Output) {
    for said in [text(&output.stdout), text(&output.stderr)] {
        assert!(!said.contains(acts), "{arguments:?}: {said:?}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said:?}");
        let forged = said.split_once("d\ne").is_some_and(|(before, _)| {
            before.lines().last().is_some_and(|line| line.contains("title"))
        });
        assert!(!forged, "{arguments:?}: {said:?}");
    }
}

/// A session whose files, processes and failures have that name, and a snapshot of it.
fn hostile(home: &Home) -> String {
    let id = home.create();
    let script = "mkdir \"$0\" && cd \"$0\" && echo x > \"$0\" && mkfifo \"p$0\" && \
        ln -s \"/$0\" \"l$0\" && ln -s \"$0\" in && cp -r . ../copy";
    home.say(&["exec", &id, "--", "sh", "-c", script, NAME]);
    home.say(&["exec", "-d", &id, "--", "sh", "-c", "sleep 1000 & wait", NAME]);
    home.say(&["snapshot", "save", &id, "--name", "kept"]);
    id
}

#[test]
fn shows_what_is_hostile_and_lets_none_of_it_act() {
    let home = Home::new();
    let id = hostile(&home);
    let inside = format!("{id}:{NAME}");
    let missing = format!("missing {NAME}");
    let missing = missing.as_str();
    let user = ["exec", "--user", NAME, &id, "--", "true"];
    let (into, out) = (format!("{id}:{NAME}/new"), format!("{id}:."));
    let at = format!("{NAME}@named");
    let id = id.as_str();
    let lines: &[&[&str]] = &[
        &["run", "--", missing],
        &["run", "--json", "--", missing],
        &["create", "--workspace", NAME],
        &["exec", id, "--", missing],
        &["exec", "--json", id, "--", missing],
        &["exec", "--workdir", NAME, id, "--", "false"],
        &user,
        &["ps", id],
        &["ps", "--json", id],
        &["attach", id, "999"],
        &["kill", id, "999"],
        &["cp", &out, "copied"],
        &["cp", "--json", &inside, "copied as well"],
        &["cp", missing, &into],
        &["cp", &format!("{id}:{missing}"), "copied"],
        &["files", "ls", id, "."],
        &["files", "ls", id, NAME],
        &["files", "ls", "--json", id, NAME],
        &["files", "ls", id, missing],
        &["files", "cat", id, missing],
        &["files", "cat", "--json", id, &format!("{NAME}/{NAME}")],
        &["files", "put", id, &format!("{missing}/new")],
        &["files", "mkdir", id, NAME],
        &["files", "rm", id, NAME],
        &["files", "rm", "--json", id, missing],
        &["init", NAME],
        &["ls"],
        &["ls", "--json"],
        &["inspect", id],
        &["inspect", "--json", id],
        &["inspect", NAME],
        &["events"],
        &["events", id],
        &["events", "--json", id],
        &["audit", "verify"],
        &["audit", "prove", "3", id],
        &["port", id, "8000"],
        &["snapshot", "save", id, "--name", "again"],
        &["snapshot", "save", id, "--name", NAME],
        &["snapshot", "save", "--json", id, "--name", "again"],
        &["snapshot", "ls"],
        &["snapshot", "verify"],
        &["snapshot", "restore", id, "kept"],
        &["snapshot", "restore", id, NAME],
        &["snapshot", "rm", NAME],
        &["checkpoint", id],
        &["checkpoint", "--json", id, "named"],
        &["checkpoint", id, NAME],
        &["log", id],
        &["log", "--json", id],
        &["diff", id, "0.."],
        &["diff", "--json", id, "0.."],
        &["diff", id, NAME],
        &["diff", id, "..", NAME],
        &["restore", id, &at],
        &["restore", "--json", id, &at],
        &["restore", id, NAME],
        &["undo", id],
        &["undo", "--json", id],
        &["redo", id],
        &["fork", id, "--at", NAME],
        &["merge", id, NAME],
        &["bisect", id, "--", NAME],
        &["sweep"],
        &["doctor"],
        &["mounts", id],
        &["mounts", "--json", id],
        &["mounts", NAME],
        &["agent", "show", NAME],
        &["agent", "run", NAME, "--", NAME],
        &["sbx", "check"],
        &["sbx", "secret", "has", NAME],
        &["sbx", "secret", "check", NAME],
        &["kubernetes", "manifest"],
        &["lease", NAME],
        &["lease", "--json", id, "1h"],
        &["stats", NAME],
        &["stats", "--json", id],
        &["net", "show", NAME],
        &["net", "explain", NAME, NAME],
        &["net", "log", id],
        &["net", "set", id, NAME],
        &["stop", id],
        &["exec", id, "--", missing],
        &["resume", id],
        &["stop", "--json", id],
        &["rm", NAME],
        &["rm", "--json", id],
    ];
    for arguments in lines {
        let output = home.run(arguments);
        check(arguments, &output);
        if arguments.contains(&"--json") && output.status.code() == Some(0) {
            for line in text(&output.stdout).lines() {
                let value: Value = serde_json::from_str(line).unwrap();
                assert!(!value.is_null(), "{arguments:?}");
            }
        }
    }
    // What was tried is all there is, but for what shows a command's own output or ours.
    let help = home.say(&["help"]);
    let commands = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let commands = commands.map_while(|line| line.strip_prefix("  "));
    let names = commands
        .filter_map(|line| line.split_whitespace().next().filter(|_| !line.starts_with(' ')));
    let mut count = 0;
    for name in names {
        let shown_raw = ["shell", "completions", "man", "help"].contains(&name);
        assert!(shown_raw || lines.iter().any(|line| line[0] == name), "{name} was not tried");
        count += 1;
    }
    assert!(count > 15, "{help}");
}

/// The names are there, in a form that shows them.
#[test]
fn shows_names_escaped_and_tells_programs_what_they_are() {
    let home = Home::new();
    let id = hostile(&home);
    let shown = "a\\x1b]0;title\\x07b\\u{9b}31mc\\u{202e}d\\ne\\x7ff\\rg";
    for arguments in [&["files", "ls", &id, "."][..], &["ps", &id], &["events", &id]] {
        let said = home.say(arguments);
        assert!(said.contains(&shown[..20]), "{arguments:?}: {said}");
    }
    let copied = home.run(&["cp", &format!("{id}:{NAME}"), "out"]);
    assert!(text(&copied.stderr).contains(&format!("left out p{shown}")), "{copied:?}");
    let listed = home.json(&["files", "ls", "--json", &id, "."]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert!(names.contains(&&Value::from(NAME)), "{names:?}");
}

/// However links lead through each other, a copy of them leads to nothing outside.
#[test]
fn copies_no_chain_of_links_that_leads_out() {
    let home = Home::new();
    let id = home.create();
    let script = "mkdir -p d/k && cd d && ln -s .. k/up && ln -s k/up/.. z && ln -s z/secret s && \
        ln -s k/up y && ln -s y/../.. x && ln -s ./k/../../secret w && echo in > in && ln -s k/../in v";
    home.say(&["exec", &id, "--", "sh", "-c", script]);
    std::fs::write(home.path().join("secret"), "secret").unwrap();
    std::fs::create_dir(home.path().join("to")).unwrap();
    let copied = home.run(&["cp", &format!("{id}:d"), "to"]);
    assert_eq!(copied.status.code(), Some(125), "{}", text(&copied.stderr));
    let to = home.path().join("to/d").canonicalize().unwrap();
    let mut seen = 0;
    let mut open = vec![to.clone()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            seen += 1;
            // Where it leads in the end, through whatever other links.
            if let Ok(place) = entry.path().canonicalize() {
                assert!(place.starts_with(&to), "{} leads to {place:?}", entry.path().display());
            }
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    assert!(seen > 3, "{}", text(&copied.stderr));
    // A link where a copy goes by its own name is not written through.
    let other = home.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::remove_dir_all(&to).unwrap();
    std::os::unix::fs::symlink(&other, home.path().join("to/d")).unwrap();
    let refused = home.run(&["cp", &format!("{id}:d"), "to"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
    std::os::unix::fs::symlink(home.path().join("secret"), home.path().join("to/in")).unwrap();
    let refused = home.run(&["cp", &format!("{id}:d/in"), "to"]);
    assert_eq!(refused.status.code(), Some(125), "{}", text(&refused.stderr));
    assert_eq!(std::fs::read_to_string(home.path().join("secret")).unwrap(), "secret");
}
