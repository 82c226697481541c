//! Which processes there are of us.

use std::fs;
use std::path::Path;

/// The children of this process, ended ones that nobody collected included.
pub(crate) fn children() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Processes that run a guest of this home.
pub(crate) fn guests(home: &Path) -> usize {
    let folder = fs::canonicalize(home).unwrap().join("guests");
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let programs = entries.filter_map(|entry| fs::read_link(entry.path().join("exe")).ok());
    programs.filter(|program| program.parent() == Some(&folder)).count()
}
