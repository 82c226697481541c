//! The blocks of commands in README and docs, run as they stand there.
//!
//! A block that cannot be run has the line `<!-- not run: REASON -->` before it; at most one in ten may. Those in
//! containers are run where a daemon was prepared, with images of this machine for the ones they name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bastide::model::document::{Document, Format};
use bastide::model::{Manifest, Registry};

use crate::harness::{Home, text};

/// The top folder of the repository.
const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Pages with a test of their own, which prepares what they need: `agent.rs`, `undo.rs`.
const ELSEWHERE: [&str; 2] = ["docs/agents.md", "docs/undo.md"];

/// The images that pages name, which would be pulled, and what the daemon of tests has for each.
const IMAGES: [(&str, &str); 2] =
    [("debian", "bastide-test/python"), ("python:3.14-slim", "bastide-test/python")];

/// What is before a block that is not run.
const MARK: &str = "<!-- not run: ";

/// What is before a block that a fresh system runs, not a test: `first_hour.sh` reads it from the page, too.
const FRESH: &str = "<!-- run by `cargo xtask first-hour`: ";

/// A block of commands.
struct Block {
    line: usize,
    commands: String,
    not_run: Option<String>,
    is_for_a_fresh_system: bool,
}

fn blocks(page: &str) -> Vec<Block> {
    let page = fs::read_to_string(Path::new(TOP).join(page)).unwrap();
    let lines: Vec<&str> = page.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        if *line != "```console" {
            continue;
        }
        let before = number.checked_sub(1).map(|before| lines[before]).unwrap_or_default();
        let not_run =
            before.strip_prefix(MARK).map(|reason| reason.trim_end_matches(" -->").to_owned());
        let is_for_a_fresh_system = before.starts_with(FRESH);
        let body = lines[number + 1..].iter().take_while(|line| !line.starts_with("```"));
        let commands = commands(body);
        found.push(Block { line: number + 1, commands, not_run, is_for_a_fresh_system });
    }
    found
}

/// The lines of a block that are typed; the others are what comes of them.
fn commands<'a>(lines: impl Iterator<Item = &'a &'a str>) -> String {
    let mut commands = String::new();
    let mut until: Option<&str> = None;
    for line in lines {
        match (until, line.strip_prefix("$ ")) {
            (Some(end), _) => {
                commands.push_str(&format!("{line}\n"));
                until = until.filter(|_| *line != end);
            }
            (None, Some(typed)) => {
                commands.push_str(&format!("{typed}\n"));
                let word = typed.split_once("<<'").and_then(|(_, rest)| rest.split_once('\''));
                until = word.map(|(word, _)| word);
            }
            (None, None) => {}
        }
    }
    commands
}

fn pages() -> Vec<String> {
    let docs = fs::read_dir(Path::new(TOP).join("docs")).unwrap();
    let names = docs.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut pages: Vec<_> = names.filter(|name| name.ends_with(".md")).collect();
    pages.sort();
    let mut pages: Vec<_> = pages.into_iter().map(|name| format!("docs/{name}")).collect();
    pages.insert(0, "README.md".to_owned());
    pages
}

/// Runs the blocks of a page one after the other in one shell, in a folder that has the examples.
#[expect(clippy::print_stderr, reason = "what is skipped is said")]
fn run_page(page: &str) {
    let home = Home::new();
    let here = tempfile::tempdir().unwrap();
    copy_examples(&here.path().join("examples"));
    let mut script = String::from("set -eu\nbastide() { \"$TOOL\" \"$@\"; }\n");
    let mut count = 0;
    let daemon = std::env::var_os("BASTIDE_TEST_DOCKER");
    for mut block in blocks(page) {
        if block.not_run.is_some() || block.is_for_a_fresh_system {
            continue;
        }
        if block.commands.contains("--backend docker") {
            if daemon.is_none() {
                eprintln!("skipped {page}:{}: no Docker daemon was prepared", block.line);
                continue;
            }
            block.commands = with_images_of_tests(&block.commands);
        }
        script.push_str(&format!("echo '== {page}:{}' >&2\n{}", block.line, block.commands));
        count += 1;
    }
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(&script);
    let mut shell = home.wrapped(shell, &[]);
    shell.envs(daemon.map(|host| ("DOCKER_HOST", host)));
    shell.env("TOOL", env!("CARGO_BIN_EXE_bastide")).env("HOME", here.path());
    let output = shell.current_dir(here.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{page} ({count} blocks):\n{}\n{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// The commands of a block, with the images of tests in the places of those it names; nothing is pulled.
fn with_images_of_tests(commands: &str) -> String {
    let mut words: Vec<&str> = commands.split(' ').collect();
    for at in 1..words.len() {
        if words[at - 1] == "--image" {
            let ours = IMAGES.iter().find(|(named, _)| *named == words[at]);
            words[at] = ours.map(|(_, ours)| *ours).unwrap();
        }
    }
    words.join(" ")
}

fn copy_examples(to: &PathBuf) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(Path::new(TOP).join("examples")).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn the_readme_is_true() {
    run_page("README.md");
}

#[test]
fn the_answers_to_questions_are_true() {
    run_page("docs/faq.md");
}

#[test]
fn the_other_pages_are_true() {
    let own = ["README.md", "docs/faq.md"];
    for page in pages() {
        if !own.contains(&page.as_str()) && !ELSEWHERE.contains(&page.as_str()) {
            run_page(&page);
        }
    }
}

#[test]
fn the_index_has_every_page() {
    let index = fs::read_to_string(Path::new(TOP).join("docs/README.md")).unwrap();
    for page in pages() {
        let name = page.trim_start_matches("docs/");
        assert!(index.contains(&format!("{name})")) || page == "docs/README.md", "{page}");
    }
}

#[test]
fn at_most_one_block_in_ten_is_not_run() {
    let (mut all, mut fresh, mut marked) = (0, 0, Vec::new());
    for page in pages() {
        for block in blocks(&page) {
            all += 1;
            fresh += usize::from(block.is_for_a_fresh_system);
            assert!(!block.commands.is_empty(), "{page}:{}: there is no command", block.line);
            marked.extend(block.not_run.map(|reason| format!("{page}:{}: {reason}", block.line)));
        }
    }
    assert!(all > 30, "only {all} blocks were found");
    assert_eq!(fresh, 1, "the installation alone");
    assert!(marked.len() * 10 <= all, "{} of {all}: {marked:#?}", marked.len());
    assert!(marked.iter().all(|mark| mark.len() > 20), "a mark without a reason: {marked:?}");
}

/// Only what is marked as commands is counted and run. `docs/cli.md` is about the form of each command, not about any.
#[test]
fn commands_stand_in_no_other_block() {
    for page in pages().iter().filter(|page| *page != "docs/cli.md") {
        let mut language = None;
        for line in fs::read_to_string(Path::new(TOP).join(page)).unwrap().lines() {
            match (language.as_deref(), line.strip_prefix("```")) {
                (None, Some(named)) => language = Some(named.to_owned()),
                (Some(_), Some(_)) => language = None,
                (Some("text" | "sh" | ""), None) => {
                    let is_command = line.starts_with("$ ") || line.starts_with("bastide ");
                    assert!(!is_command, "{page}: {line}");
                    assert_ne!(language.as_deref(), Some("sh"), "{page}: {line}");
                }
                _ => {}
            }
        }
    }
}

/// Every example of `docs/manifest.md`: laid out, or checked where it needs what a test has not.
#[test]
fn the_examples_of_manifests_work() {
    let home = Home::new();
    let here = tempfile::tempdir().unwrap();
    fs::create_dir_all(here.path().join("config")).unwrap();
    fs::create_dir(here.path().join("assets")).unwrap();
    fs::write(here.path().join("config/setup.cfg"), "[tool]\n").unwrap();
    fs::write(here.path().join("assets/a.txt"), "a\n").unwrap();
    let page = fs::read_to_string(Path::new(TOP).join("docs/manifest.md")).unwrap();
    let examples = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (mut laid_out, mut checked) = (0, 0);
    for (number, example) in examples.enumerate() {
        if example.contains("_mount") || example.contains("git_repo") {
            // A key by reference stands for a text.
            let example = example
                .replace("{from: \"env:S3_ID\"}", "id")
                .replace("{from: \"env:S3_KEY\"}", "key");
            let document = Document::parse("manifest.md", &example, Format::Yaml).unwrap();
            let parsed = Manifest::of_document(&document, Registry::builtin());
            assert!(parsed.is_ok(), "{example}\n{:?}", parsed.err());
            checked += 1;
            continue;
        }
        let file = here.path().join(format!("{number}.yaml"));
        fs::write(&file, example).unwrap();
        let output = home.run(&["run", "--manifest", file.to_str().unwrap(), "--", "ls", "-A"]);
        assert_eq!(output.status.code(), Some(0), "{example}\n{}", text(&output.stderr));
        laid_out += 1;
    }
    assert!(laid_out >= 10 && checked >= 10, "{laid_out} laid out, {checked} checked");
}
