//! Whether ARCHITECTURE.md and CONTRIBUTING.md name what there is.

use std::fs;
use std::path::Path;

use crate::shell::{Outcome, say, top};

/// The most functions between the command line and `execve`.
const MOST_FUNCTIONS: usize = 12;

/// The most words of the glossary.
const MOST_WORDS: usize = 25;

/// The rows of the list that newcomers are tried with.
const NEWCOMERS_THINGS: usize = 20;

/// Fails on a function or a file that is not where a document says, and on a walk, a glossary or a list of another length.
pub(crate) fn check() -> Outcome {
    let top = top();
    let read = |path: &str| fs::read_to_string(top.join(path)).ok();
    let exists = |path: &str| top.join(path).exists();
    let architecture = fs::read_to_string(top.join("ARCHITECTURE.md"))?;
    let mut wrong = named("ARCHITECTURE.md", problems(&architecture, &read, &exists));
    let contributing = fs::read_to_string(top.join("CONTRIBUTING.md"))?;
    wrong.extend(named("CONTRIBUTING.md", list_problems(&contributing, &exists)));
    if wrong.is_empty() {
        say("ARCHITECTURE.md and CONTRIBUTING.md name functions and files that there are");
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

fn named(document: &str, problems: Vec<String>) -> Vec<String> {
    problems.into_iter().map(|problem| format!("{document}: {problem}")).collect()
}

/// What is wrong with the list that newcomers are tried with.
fn list_problems(document: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let list = section(document, "## Twenty things to change");
    let rows = rows(list);
    let mut wrong = Vec::new();
    if rows != NEWCOMERS_THINGS {
        wrong.push(format!("the list has {rows} things, not {NEWCOMERS_THINGS}"));
    }
    wrong.extend(missing_paths(list, exists));
    wrong
}

fn problems(
    document: &str,
    read: &dyn Fn(&str) -> Option<String>,
    exists: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut walked = walk(document, "## Life of one command");
    if walked.is_empty() || walked.len() > MOST_FUNCTIONS {
        wrong.push(format!("the walk of one command has {} functions", walked.len()));
    }
    walked.extend(walk(document, "## Life of one outgoing connection"));
    for (function, path) in walked {
        let defines = |text: String| {
            let definition = format!("fn {function}");
            text.match_indices(&definition)
                .any(|(at, _)| text[at + definition.len()..].starts_with(['(', '<']))
        };
        if !read(path).is_some_and(defines) {
            wrong.push(format!("there is no `{function}` in {path}"));
        }
    }
    let words = rows(section(document, "## Glossary"));
    if words == 0 || words > MOST_WORDS {
        wrong.push(format!("the glossary has {words} words, at most {MOST_WORDS}"));
    }
    wrong.extend(missing_paths(section(document, "## Where do I change X"), exists));
    wrong
}

/// How many rows a table has below its head.
fn rows(table: &str) -> usize {
    table.lines().filter(|line| line.starts_with("| ")).count().saturating_sub(1)
}

/// Paths that a table names and nobody finds. One that is not whole is relative to a folder of the one before it in its line.
fn missing_paths(table: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for line in table.lines() {
        let mut before = "";
        for path in line.split('`').skip(1).step_by(2) {
            if is_path(path) {
                before = path;
                if !exists(path) {
                    missing.push(format!("there is no {path}"));
                }
            } else if is_relative_path(path) && !is_beside(before, path, exists) {
                missing.push(format!("there is no {path} beside {before:?}"));
            }
        }
    }
    missing
}

/// Whether a path is in a folder of another one, or in the folder of that module.
fn is_beside(before: &str, path: &str, exists: &dyn Fn(&str) -> bool) -> bool {
    let module = before.strip_suffix(".rs").unwrap_or(before).trim_end_matches('/');
    let folders = Path::new(module).ancestors().filter_map(Path::to_str);
    folders.filter(|folder| !folder.is_empty()).any(|folder| exists(&format!("{folder}/{path}")))
}

/// Each numbered line of a walk that names a function and its file.
fn walk<'a>(document: &'a str, title: &str) -> Vec<(&'a str, &'a str)> {
    let lines = section(document, title).lines();
    lines
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .filter_map(|line| {
            let mut named = line.split('`').skip(1).step_by(2);
            Some((named.next()?, named.next().filter(|path| path.ends_with(".rs"))?))
        })
        .collect()
}

/// What stands below a title, up to the next one.
fn section<'a>(document: &'a str, title: &str) -> &'a str {
    let below = document.split_once(title).map_or("", |(_, below)| below);
    below.split("\n## ").next().unwrap_or_default()
}

/// Whether something in a table is a whole path.
fn is_path(text: &str) -> bool {
    let folders = ["crates/", "backends/", "docs/", "fixtures/", "python/"];
    folders.iter().any(|folder| text.starts_with(folder)) && !text.contains('*')
}

/// Whether it is one that is relative to another.
fn is_relative_path(text: &str) -> bool {
    let ends = [".rs", ".py", "/"];
    ends.iter().any(|end| text.ends_with(end)) && !text.contains([' ', '*'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "## Glossary\n\n| word | means |\n|---|---|\n| guest | inside |\n\n## Life of one command\n\n\
                        1. `run` in `a.rs` begins.\n2. `exec` in `b.rs` ends.\n\n## Where do I change X\n\n| it | `crates/x.rs`, `y.rs` |\n";

    fn found(document: &str, source: &str) -> Vec<String> {
        let exists = |path: &str| ["crates/x.rs", "crates/y.rs"].contains(&path);
        problems(document, &|_| Some(source.to_owned()), &exists)
    }

    #[test]
    fn finds_what_is_not_where_it_is_said_to_be() {
        let source = "pub fn run<T>() {}\nfn exec() {}\n";
        assert_eq!(found(GOOD, source), Vec::<String>::new());
        assert_eq!(found(GOOD, "fn run() {}\nfn executes() {}"), ["there is no `exec` in b.rs"]);
        let moved = GOOD.replace("crates/x.rs", "crates/z.rs");
        assert_eq!(found(&moved, source), ["there is no crates/z.rs"]);
        let moved = GOOD.replace("`y.rs`", "`x/y.rs`");
        assert_eq!(found(&moved, source), ["there is no x/y.rs beside \"crates/x.rs\""]);
        let other = "## Life of one outgoing connection\n\n1. `join` in `c.rs` begins.\n2. It asks `dns`.\n\n## Where";
        let joined = GOOD.replace("## Where", other);
        assert_eq!(found(&joined, source), ["there is no `join` in c.rs"]);
        let long =
            GOOD.replace("1. `run` in `a.rs` begins.\n", &"1. `run` in `a.rs`.\n".repeat(12));
        assert_eq!(found(&long, source), ["the walk of one command has 13 functions"]);
    }

    #[test]
    fn finds_newcomers_led_astray() {
        let row = "| a thing | `crates/x.rs` |\n";
        let document = |rows: usize| {
            let head = "## Twenty things to change\n\n| thing | file |\n|---|---|\n";
            format!("{head}{}\n## Style\n\n`crates/other.rs`\n", row.repeat(rows))
        };
        let exists = |path: &str| path == "crates/x.rs";
        assert_eq!(list_problems(&document(20), &exists), Vec::<String>::new());
        assert_eq!(list_problems(&document(19), &exists), ["the list has 19 things, not 20"]);
        let moved = document(20).replacen("crates/x.rs", "docs/y.md", 1);
        assert_eq!(list_problems(&moved, &exists), ["there is no docs/y.md"]);
    }
}
