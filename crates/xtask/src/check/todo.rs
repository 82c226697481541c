//! Nothing is marked as left to do: what is not done is refused by name, or not there.

use std::fs;
use std::path::Path;

use super::tree::{collect, shown};
use crate::shell::{Outcome, say, top};

/// What people mark unfinished work with, in two halves: this file is checked, too.
const MARKERS: [(&str, &str); 3] = [("TO", "DO"), ("FIX", "ME"), ("X", "XX")];

/// Endings of files that are recorded or made, not written.
const RECORDED: [&str; 2] = ["jsonl", "lock"];

/// Fails on a file with a marker.
pub(crate) fn check() -> Outcome {
    let wrong = problems(&top())?;
    if wrong.is_empty() {
        say("nothing is marked as unfinished");
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

fn problems(top: &Path) -> Outcome<Vec<String>> {
    let markers = MARKERS.map(|(first, second)| format!("{first}{second}"));
    let mut files = Vec::new();
    collect(top, &mut files)?;
    files.sort();
    let mut wrong = Vec::new();
    for file in files {
        if file.extension().is_some_and(|end| RECORDED.iter().any(|recorded| end == *recorded)) {
            continue;
        }
        // What is no text has no comments.
        let Ok(text) = String::from_utf8(fs::read(&file)?) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(marker) = markers.iter().find(|marker| has_word(line, marker)) {
                wrong.push(format!("{}:{number}: {marker}", shown(&file, top)));
            }
        }
    }
    Ok(wrong)
}

/// Whether a line has a word; a longer one that holds it, such as the template of a file's name, is another.
fn has_word(line: &str, word: &str) -> bool {
    line.split(|letter: char| !letter.is_alphanumeric()).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::super::tree::made_up;
    use super::*;

    #[test]
    fn finds_markers_of_unfinished_work() {
        let [todo, fixme, xxx] = MARKERS.map(|(first, second)| format!("{first}{second}"));
        let top = made_up::tree(&[
            ("README.md", &format!("# It\n\n{todo}: write\n")),
            ("crates/a/src/lib.rs", &format!("fn a() {{}} // {fixme}(me) later\n")),
            ("crates/a/Cargo.toml", &format!("# {xxx}\n")),
            ("crates/a/src/fine.rs", &format!("let name = \"{xxx}{xxx}\"; // {todo}S\n")),
            ("crates/a/data/recorded.jsonl", &format!("{todo}\n")),
            ("target/debug/lib.rs", &format!("// {todo}\n")),
        ]);
        let wrong = problems(top.path()).unwrap();
        let expected = [
            format!("README.md:3: {todo}"),
            format!("crates/a/Cargo.toml:1: {xxx}"),
            format!("crates/a/src/lib.rs:1: {fixme}"),
        ];
        assert_eq!(wrong, expected);
    }
}
