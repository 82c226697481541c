//! Which files of a workspace the configuration of its repository has git run or read, found without git.
//!
//! Git's configuration names programs: hooks in a folder, monitors, filters, drivers. Where one of them lies in the
//! workspace, an agent that could write to it would have the user's next git run it.

use std::path::{Component, Path, PathBuf};

/// What of `config`, the text of a configuration that lies in `base`, lies in the workspace `folder`: commands that are
/// there, and files and folders that git reads as soon as they are.
pub(crate) fn named_in(config: &str, base: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (key, value) in settings(config) {
        if !runs_or_reads(&key) {
            continue;
        }
        // Of a command with arguments each can be a script.
        for (number, word) in words(&value).iter().enumerate() {
            // Git follows these from where they are written, all else from the workspace.
            let from = if is_include(&key) { base } else { folder };
            let is_path = number == 0 && PATHS.contains(&key.as_str());
            found.extend(
                within(word, from, folder)
                    .filter(|path| is_path || path.symlink_metadata().is_ok()),
            );
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The configurations that `config`, which lies in `base`, has git read besides.
pub(crate) fn included_by(config: &str, base: &Path) -> Vec<PathBuf> {
    let included = settings(config).into_iter().filter(|(key, _)| is_include(key));
    let paths = included.filter_map(|(_, value)| words(&value).into_iter().next());
    paths.filter(|path| !path.is_empty()).map(|path| base.join(path)).collect()
}

fn is_include(key: &str) -> bool {
    matches!(key, "include.path" | "includeif.path")
}

/// Every setting of a configuration: the first word of its section with its name, and its value.
fn settings(config: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in joined(config) {
        let mut line = line.trim();
        // A setting may follow on the same line.
        while let Some((name, rest)) = header(line) {
            section = name;
            line = rest.trim_start();
        }
        let (context, _comment) = split_unquoted(line, &['#', ';']);
        if let Some((key, value)) = context.split_once('=') {
            let key = format!("{}.{}", section, key.trim().to_ascii_lowercase());
            found.push((key, value.to_owned()));
        }
    }
    found
}

/// What stands before the first of these characters that is not in quotes, and what stands after it.
fn split_unquoted<'t>(text: &'t str, ends: &[char]) -> (&'t str, &'t str) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if !is_quoted && ends.contains(&c) => {
                let (before, after) = text.split_at(at);
                return (before, after.strip_prefix(c).unwrap_or(after));
            }
            _ => {}
        }
    }
    (text, "")
}

/// The first word of the section that a line begins with, and what follows it. `[filter.x]` is an older way to write
/// `[filter "x"]`.
fn header(line: &str) -> Option<(String, &str)> {
    let (header, rest) = split_unquoted(line.strip_prefix('[')?, &[']']);
    let name = header.split(|c: char| c.is_whitespace() || c == '.' || c == '"').next();
    Some((name.unwrap_or_default().to_ascii_lowercase(), rest))
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
        "core.alternaterefscommand",
        "interactive.difffilter",
        "submodule.update",
        "remote.uploadpack",
        "remote.receivepack",
        "hook.command",
        "trailer.command",
        "trailer.cmd",
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
        "gpg.defaultkeycommand",
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
        let found = named_in(config, &top.join(".git"), top);
        let want = [".husky/_", "planted", "tools/clean.sh", "tools/monitor", "with space/run"];
        assert_eq!(found, want.map(|name| top.join(name)));
        assert!(named_in("[core\nhooksPath", top, top).is_empty());
    }

    #[test]
    fn reads_sections_however_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path();
        for name in ["clean", "smudge", "key"] {
            fs::write(top.join(name), "").unwrap();
        }
        for (config, name) in [
            ("[core] hooksPath = hooks", "hooks"),
            ("[user][core]hooksPath=hooks # mine", "hooks"),
            ("[CORE]\nHooksPath = hooks", "hooks"),
            ("[filter.x]\nclean = clean", "clean"),
            ("[filter \"a]b\"] smudge = smudge", "smudge"),
            ("[filter \"a\\\"]b\"] smudge = smudge", "smudge"),
            ("[gpg \"ssh\"]\n\tdefaultKeyCommand = ./key", "key"),
        ] {
            let found = named_in(config, &top.join(".git"), top);
            assert!(found.contains(&top.join(name)), "{config}: {found:?}");
        }
        let config =
            "[include] path = ../.gitconfig\n[includeIf \"onbranch:x\"]\n path = /etc/more\n";
        let included = included_by(config, &top.join(".git"));
        assert_eq!(included, [top.join(".git/../.gitconfig"), "/etc/more".into()]);
    }
}
