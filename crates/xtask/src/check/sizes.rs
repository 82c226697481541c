//! Files stay small and have names that say something.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::{Outcome, say, top};

/// The most lines of a file before its tests.
const MOST_LINES: usize = 600;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "util.rs", "common.rs", "helpers.rs", "mod.rs"];

/// Fails on a file that is too long or badly named.
pub(crate) fn check() -> Outcome {
    let mut files = Vec::new();
    for folder in ["crates", "backends", "examples"] {
        collect(&top().join(folder), &mut files)?;
    }
    let mut wrong = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if EMPTY_NAMES.contains(&name.as_ref()) {
            wrong.push(format!("{}: the name says nothing", file.display()));
        }
        let text = fs::read_to_string(file)?;
        let lines = text.lines().take_while(|line| line.trim() != "#[cfg(test)]").count();
        if lines > MOST_LINES {
            wrong.push(format!("{}: {lines} lines, at most {MOST_LINES}", file.display()));
        }
    }
    if wrong.is_empty() {
        say(&format!("{} source files, none over {MOST_LINES} lines", files.len()));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

/// Every source file in a folder.
pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
