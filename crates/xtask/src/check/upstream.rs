//! What the reference's own tests assert, and what holds the same here.

use std::collections::BTreeSet;
use std::fs;

use super::tree::sources;
use crate::shell::{Outcome, say, top};

/// The list.
const LIST: &str = "docs/upstream-tests.toml";

/// Fails on a test of the reference that nothing is said about, and on something named that does not
/// exist.
pub(crate) fn check() -> Outcome {
    let text = fs::read_to_string(top().join(LIST))?;
    let known = Known::find()?;
    let (mut wrong, mut names, mut cited) = (Vec::new(), BTreeSet::new(), None);
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        if line.is_empty() || line.starts_with(['#', '[']) {
            continue;
        }
        if let Some(count) = line.strip_prefix("cited = ") {
            cited = count.parse::<usize>().ok();
            continue;
        }
        let unquoted = |text: &str| text.trim().trim_matches('"').to_owned();
        let Some((name, ours)) = line.split_once("\" = \"") else {
            wrong.push(format!("{LIST}:{number}: not a name and what holds the same"));
            continue;
        };
        let (name, ours) = (unquoted(name), unquoted(ours));
        if !names.insert(name.clone()) {
            wrong.push(format!("{LIST}:{number}: {name} is named twice"));
        }
        if let Some(why) = known.refuse(&ours) {
            wrong.push(format!("{LIST}:{number}: {name}: {why}"));
        }
    }
    if cited != Some(names.len()) {
        wrong.push(format!("{LIST}: {cited:?} tests are cited, {} are named", names.len()));
    }
    if wrong.is_empty() {
        say(&format!("{} tests of the reference, each answered", names.len()));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

/// What this project has.
struct Known {
    /// The names of all functions in its sources.
    functions: BTreeSet<String>,
    /// The functions of the recorded cases.
    recorded: BTreeSet<String>,
}

impl Known {
    fn find() -> Result<Self, Box<dyn std::error::Error>> {
        let mut files = Vec::new();
        for folder in ["crates", "backends"] {
            sources(&top().join(folder), &mut files)?;
        }
        let mut functions = BTreeSet::new();
        for file in files {
            for line in fs::read_to_string(file)?.lines() {
                let after = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
                functions.extend(after.map(str::to_owned));
            }
        }
        let mut recorded = BTreeSet::new();
        for entry in fs::read_dir(top().join("crates/testkit/data/vectors"))? {
            for line in fs::read_to_string(entry?.path())?.lines() {
                let name =
                    line.split("\"fn\": \"").nth(1).or_else(|| line.split("\"fn\":\"").nth(1));
                let name = name.and_then(|rest| rest.split('"').next());
                recorded.extend(name.map(str::to_owned));
            }
        }
        Ok(Self { functions, recorded })
    }

    /// Why something that is named does not count.
    fn refuse(&self, ours: &str) -> Option<String> {
        let missing = |what: &str, name: &str| Some(format!("there is no {what} `{name}`"));
        match ours.split_once(':') {
            Some(("test" | "trial", name)) if self.functions.contains(name) => None,
            Some(("test" | "trial", name)) => missing("test", name),
            Some(("vectors", name)) if self.recorded.contains(name) => None,
            Some(("vectors", name)) => missing("recorded function", name),
            Some(("n/a", why)) if why.trim().len() > 10 => None,
            _ => Some(format!("`{ours}` names nothing")),
        }
    }
}
