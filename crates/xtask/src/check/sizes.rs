//! Files stay small and have names that say something.

use std::fs;
use std::path::Path;

use super::tree::{collect, shown};
use crate::shell::{Outcome, say, top};

/// The most lines of a file, its tests included.
const MOST_LINES: usize = 500;

/// Where sources are, and how their names end.
const FOLDERS: [&str; 5] = ["crates", "backends", "examples", "fuzz", "python"];
const ENDINGS: [&str; 3] = ["rs", "py", "pyi"];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "util.rs", "common.rs", "helpers.rs", "mod.rs"];

/// Fails on a file that is too long or badly named.
pub(crate) fn check() -> Outcome {
    let (count, wrong) = problems(&top())?;
    if wrong.is_empty() {
        say(&format!("{count} source files, none over {MOST_LINES} lines"));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

/// How many files there are, and what is wrong with them.
fn problems(top: &Path) -> Outcome<(usize, Vec<String>)> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&top.join(folder), &mut files)?;
    }
    files
        .retain(|file| file.extension().is_some_and(|end| ENDINGS.iter().any(|ours| end == *ours)));
    files.sort();
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if EMPTY_NAMES.contains(&name.as_ref()) {
            wrong.push(format!("{}: the name says nothing", shown(file, top)));
        }
        let text = fs::read_to_string(file)?;
        let lines = text.lines().count();
        if lines > MOST_LINES {
            wrong.push(format!("{}: {lines} lines, at most {MOST_LINES}", shown(file, top)));
        }
    }
    Ok((files.len(), wrong))
}

#[cfg(test)]
mod tests {
    use super::super::tree::made_up;
    use super::*;

    #[test]
    fn finds_files_that_are_long_or_badly_named() {
        let most = "// line\n".repeat(MOST_LINES);
        let tested = format!("{most}#[cfg(test)]\nmod tests {{}}\n");
        let top = made_up::tree(&[
            ("crates/a/src/most.rs", &most),
            ("crates/a/src/tested.rs", &tested),
            ("crates/a/src/one_more.rs", &format!("{most}// line\n")),
            ("python/tests/test_it.py", &"pass\n".repeat(MOST_LINES + 2)),
            ("backends/b/src/utils.rs", ""),
            ("crates/a/notes.txt", &"line\n".repeat(2 * MOST_LINES)),
        ]);
        let (count, wrong) = problems(top.path()).unwrap();
        assert_eq!(count, 5);
        assert_eq!(
            wrong,
            [
                "backends/b/src/utils.rs: the name says nothing",
                "crates/a/src/one_more.rs: 501 lines, at most 500",
                "crates/a/src/tested.rs: 502 lines, at most 500",
                "python/tests/test_it.py: 502 lines, at most 500",
            ]
        );
    }
}
