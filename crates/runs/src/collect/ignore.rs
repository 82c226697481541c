//! Which files nobody wants to hear of: `.gitignore` as git reads it.

use super::glob;

/// The most of one file that is read.
pub(super) const MAX_FILE: u64 = 1 << 20;

/// The most rules of one file; git itself has no bound, and no repository comes near this.
const MAX_RULES: usize = 20_000;
const MAX_PATTERN: usize = 4096;

/// The rules of one folder.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    pattern: Vec<u8>,
    negated: bool,
    only_folders: bool,
    /// Whether it is about the whole path from its folder on, and not about a name anywhere below.
    anchored: bool,
    /// Whether it can be compared as it is.
    is_literal: bool,
}

impl Rules {
    pub(super) fn parse(text: &[u8]) -> Self {
        let rules = text.split(|byte| *byte == b'\n').filter_map(Rule::parse);
        Self { rules: rules.take(MAX_RULES).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What these rules say of a path relative to their folder; `None` if nothing.
    fn says(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let rule = self.rules.iter().rev().find(|rule| rule.matches(path, is_dir))?;
        Some(!rule.negated)
    }
}

impl Rule {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let line = trim_spaces(line);
        let (negated, line) = match line.strip_prefix(b"!") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (only_folders, line) = match line.strip_suffix(b"/") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        // No path is nearly that long; looking for it would take as long as it is, for each of them.
        if line.is_empty() || line.len() > MAX_PATTERN {
            return None;
        }
        let anchored = line.contains(&b'/');
        let pattern = line.strip_prefix(b"/").unwrap_or(line).to_vec();
        let is_literal = !pattern.iter().any(|byte| b"*?[\\".contains(byte));
        Some(Self { pattern, negated, only_folders, anchored, is_literal })
    }

    fn matches(&self, path: &[u8], is_dir: bool) -> bool {
        if self.only_folders && !is_dir {
            return false;
        }
        let subject = match self.anchored {
            true => path,
            false => super::open::split(path).1,
        };
        match self.is_literal {
            true => self.pattern == subject,
            false => glob::matches(&self.pattern, subject),
        }
    }
}

/// Without the spaces at the end that no backslash keeps.
fn trim_spaces(mut line: &[u8]) -> &[u8] {
    while let Some(shorter) = line.strip_suffix(b" ") {
        let backslashes = shorter.iter().rev().take_while(|byte| **byte == b'\\').count();
        if backslashes % 2 == 1 {
            break;
        }
        line = shorter;
    }
    line
}

/// The rules that hold in a folder: its own and those of the folders around it, to the top of their
/// repository.
#[derive(Debug, Clone, Default)]
pub(super) struct Stack {
    /// Each with the folder it is of, relative to the workspace, outermost first.
    levels: Vec<(Vec<u8>, std::rc::Rc<Rules>)>,
}

impl Stack {
    /// The same with the rules of one more folder.
    pub(super) fn with(&self, folder: &[u8], rules: Rules) -> Self {
        let mut stack = self.clone();
        if !rules.is_empty() {
            stack.levels.push((folder.to_vec(), std::rc::Rc::new(rules)));
        }
        stack
    }

    /// Whether something is ignored whose folder is not.
    pub(super) fn ignores(&self, path: &[u8], is_dir: bool) -> bool {
        self.levels.iter().rev().find_map(|(folder, rules)| {
            let beneath = match folder.is_empty() {
                true => path,
                false => path.strip_prefix(folder.as_slice())?.strip_prefix(b"/")?,
            };
            rules.says(beneath, is_dir)
        }) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Git itself is asked the same.
    #[test]
    fn ignores_what_git_ignores() {
        let rules = "# no\n\\#yes\n*.o\n!keep.o\n/top\nsub/deep\ndir/\n**/any/x\nsp \\ \n trail  \na/**\n\
                     !a/b\n[x-z]?\n\\!bang\n/*.txt\n";
        let paths = [
            "#yes",
            "x.o",
            "d/x.o",
            "keep.o",
            "d/keep.o",
            "top",
            "d/top",
            "sub/deep",
            "d/sub/deep",
            "dir",
            "d/dir",
            "any/x",
            "q/any/x",
            "sp  ",
            "sp",
            " trail",
            "a/b",
            "a/c",
            "xy",
            "d/zz",
            "!bang",
            "n.txt",
            "d/n.txt",
            "plain",
        ];
        let folder = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str]| {
            Command::new("git").current_dir(&folder).args(arguments).output().unwrap()
        };
        git(&["init", "-q"]);
        std::fs::write(folder.path().join(".gitignore"), rules).unwrap();
        let stack = Stack::default().with(b"", Rules::parse(rules.as_bytes()));
        for path in paths {
            let want = git(&["check-ignore", "-q", "--no-index", path]).status.success();
            let mut got = stack.ignores(path.as_bytes(), false);
            if let Some((around, _)) = path.rsplit_once('/') {
                got |= stack.ignores(around.as_bytes(), true);
            }
            assert_eq!(got, want, "{path}");
        }
    }
}
