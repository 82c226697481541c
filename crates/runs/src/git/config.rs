//! Which files of a workspace the configuration of its repository has git run or read, found without git.
//!
//! Git's configuration names programs: hooks in a folder, monitors, filters, drivers. Where one of them lies in the
//! workspace, an agent that could write to it would have the user's next git run it.

use std::path::{Component, Path, PathBuf};

/// What of `config`, the text of a repository's configuration, lies in the workspace `folder`: commands that are there,
/// and files and folders that git reads as soon as they are.
pub(crate) fn named_in(config: &str, folder: &Path) -> Vec<PathBuf> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in joined(config) {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or_default();
            section = header.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let key = format!("{}.{}", section, key.trim().to_ascii_lowercase());
        if !runs_or_reads(&key) {
            continue;
        }
        // Of a command with arguments each can be a script.
        for (number, word) in words(value).iter().enumerate() {
            // Git follows these from its own folder, all else from the workspace.
            let from =
                if key.starts_with("include") { folder.join(".git") } else { folder.to_owned() };
            let is_path = number == 0 && PATHS.contains(&key.as_str());
            found.extend(
                within(word, &from, folder)
                    .filter(|path| is_path || path.symlink_metadata().is_ok()),
            );
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Keys whose value is a path, and no command.
const PATHS: &[&str] = &[
    "core.hookspath",
    "core.attributesfile",
    "core.excludesfile",
    "include.path",
    "includeif.path",
];

/// Whether the value of a key is a path or a command. Sections with a name count by their first word.
fn runs_or_reads(key: &str) -> bool {
    const COMMANDS: &[&str] = &[
        "core.fsmonitor",
        "core.sshcommand",
        "core.gitproxy",
        "core.editor",
        "core.pager",
        "core.askpass",
        "sequence.editor",
        "credential.helper",
        "diff.external",
        "diff.command",
        "diff.textconv",
        "merge.driver",
        "filter.clean",
        "filter.smudge",
        "filter.process",
        "gpg.program",
        "uploadpack.packobjectshook",
    ];
    PATHS.contains(&key)
        || COMMANDS.contains(&key)
        || key.starts_with("alias.")
        || key.starts_with("pager.")
        || key.starts_with("difftool.")
        || key.starts_with("mergetool.")
}

/// Lines, with those that go on in the next one.
fn joined(config: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in config.lines() {
        let (text, ends) = match line.strip_suffix('\\') {
            Some(text) => (text, false),
            None => (line, true),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some(last) => last.push_str(text),
            None => lines.push(text.to_owned()),
        }
        goes_on = !ends;
    }
    lines
}

/// The words of a value, without quotes and without the mark of a shell command.
fn words(value: &str) -> Vec<String> {
    let plain: String = value.trim().chars().filter(|char| !matches!(char, '"' | '\'')).collect();
    let plain = plain.trim_start_matches('!');
    // A path with spaces in it is one word as a whole.
    std::iter::once(plain).chain(plain.split_whitespace()).map(str::to_owned).collect()
}

/// A path in the workspace, if that is what a word is.
fn within(word: &str, from: &Path, folder: &Path) -> Option<PathBuf> {
    if word.is_empty() {
        return None;
    }
    let path = from.join(word);
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    let is_in =
        plain.starts_with(folder) && plain != folder && !plain.starts_with(folder.join(".git"));
    is_in.then_some(plain)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn finds_what_git_would_run_in_the_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for name in [".husky/_", "tools", "with space", ".git/hooks"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in ["tools/clean.sh", "tools/monitor", "with space/run", "README"] {
            fs::write(top.join(name), "").unwrap();
        }
        let config = "[core]\n\thooksPath = .husky/_\n\tfsmonitor = \"tools/monitor\"\n\tbare = false\n\
            [filter \"x\"]\n\tclean = sh ./tools/../tools/clean.sh \\\n --flag\n\
            [alias]\n\tgo = \"!'with space/run'\"\n\
            [remote \"README\"]\n\turl = README\n\
            [include]\n\tpath = ../planted\n\tpath = ../../outside\n[gpg]\n\tprogram = /usr/bin/gpg\n\
            [diff]\n\texternal = .git/hooks\n";
        let found = named_in(config, top);
        let want = [".husky/_", "planted", "tools/clean.sh", "tools/monitor", "with space/run"];
        assert_eq!(found, want.map(|name| top.join(name)));
        assert!(named_in("[core\nhooksPath", top).is_empty());
    }
}
