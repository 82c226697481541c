//! Every crate has a page, its README, which says what each module holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::tree::{crates, shown, sources};
use crate::shell::{Outcome, say, top};

/// The title above the list of modules.
const TITLE: &str = "\n## Modules\n";

/// How a page introduces the reference.
const DEFINITION: &str = "*The reference*";

/// How an example on a page begins.
const EXAMPLES: [&str; 2] = ["```rust", "```python"];

/// Fails on a crate without a page, on a library whose page shows no use of it, on a list of modules that is not what
/// there is, and on a crate whose comments speak of the reference where its page does not say what that is.
pub(crate) fn check() -> Outcome {
    let top = top();
    let (crates, mut wrong) = (crates(&top)?, Vec::new());
    for folder in &crates {
        let problems = problems(folder)?;
        wrong.extend(
            problems.into_iter().map(|problem| format!("{}: {problem}", shown(folder, &top))),
        );
    }
    if wrong.is_empty() {
        say(&format!("{} crates, each with a page that lists its modules", crates.len()));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

/// What is wrong with the page of one crate.
fn problems(folder: &Path) -> Outcome<Vec<String>> {
    let Ok(page) = fs::read_to_string(folder.join("README.md")) else {
        return Ok(vec!["there is no README.md".to_owned()]);
    };
    let mut wrong = Vec::new();
    let modules = modules(&folder.join("src"))?;
    let mut listed = BTreeSet::new();
    for (name, text) in listed_modules(&page) {
        if text.is_empty() {
            wrong.push(format!("README.md says nothing of the module `{name}`"));
        }
        if !modules.contains(name) {
            wrong.push(format!("README.md lists `{name}`, and there is no such module"));
        }
        if !listed.insert(name.to_owned()) {
            wrong.push(format!("README.md lists `{name}` twice"));
        }
    }
    let missing = modules.difference(&listed);
    wrong.extend(missing.map(|name| format!("README.md does not list the module `{name}`")));
    let is_library = folder.join("src/lib.rs").exists();
    if is_library && !EXAMPLES.iter().any(|example| page.contains(example)) {
        wrong.push("README.md shows no use of the library".to_owned());
    }
    if !page.contains(DEFINITION) && speaks_of_the_reference(folder)? {
        wrong.push("README.md does not say what the reference is".to_owned());
    }
    Ok(wrong)
}

/// The modules of a crate's root: each is a file, with or without a folder of its name.
fn modules(src: &Path) -> Outcome<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(src)? {
        let path = entry?.path();
        let is_source = path.extension().is_some_and(|end| end == "rs");
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_source && name != "lib" && name != "main" {
            found.insert(name);
        }
    }
    Ok(found)
}

/// Each line of the list: a name, and what is said of it.
fn listed_modules(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let list = page.split_once(TITLE).map_or("", |(_, below)| below);
    let list = list.split("\n## ").next().unwrap_or_default();
    list.lines().filter_map(|line| {
        let (name, text) = line.strip_prefix("- `")?.split_once('`')?;
        Some((name, text.trim_start_matches(':').trim()))
    })
}

/// Whether comments of a crate use the word for what Bastide is compatible with.
fn speaks_of_the_reference(folder: &Path) -> Outcome<bool> {
    let mut files = Vec::new();
    sources(&folder.join("src"), &mut files)?;
    for file in files {
        let text = fs::read_to_string(file)?;
        let mut comments = text.lines().filter_map(|line| line.trim().strip_prefix("//"));
        if comments.any(|comment| comment.to_lowercase().contains("the reference")) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::tree::made_up;
    use super::*;

    fn found(page: &str, sources: &[(&str, &str)]) -> Vec<String> {
        let page = format!("{page}\n```rust\n```\n");
        let mut files = vec![("crates/a/src/lib.rs", ""), ("crates/a/README.md", &page)];
        files.extend(sources);
        let top = made_up::tree(&files);
        problems(&top.path().join("crates/a")).unwrap()
    }

    #[test]
    fn finds_lists_of_modules_that_are_not_what_there_is() {
        let sources = [
            ("crates/a/src/one.rs", ""),
            ("crates/a/src/one/inner.rs", ""),
            ("crates/a/src/two.rs", ""),
        ];
        let page =
            "# a\n\n## Modules\n\n- `one`: the first\n- `two`: the second\n\n## More\n\n- `x`\n";
        assert_eq!(found(page, &sources), Vec::<String>::new());
        let missing = page.replace("- `two`: the second\n", "");
        assert_eq!(found(&missing, &sources), ["README.md does not list the module `two`"]);
        let extra = page.replace("- `two`", "- `three`: a third\n- `two`");
        assert_eq!(
            found(&extra, &sources),
            ["README.md lists `three`, and there is no such module"]
        );
        let silent = page.replace(": the second", ":");
        assert_eq!(found(&silent, &sources), ["README.md says nothing of the module `two`"]);
        let twice = page.replace("- `two`", "- `one`: again\n- `two`");
        assert_eq!(found(&twice, &sources), ["README.md lists `one` twice"]);
        let without = found("# a\n", &sources);
        assert_eq!(without.len(), 2, "{without:?}");
    }

    #[test]
    fn finds_crates_without_a_page_or_a_definition() {
        let top = made_up::tree(&[("crates/a/src/lib.rs", "")]);
        assert_eq!(problems(&top.path().join("crates/a")).unwrap(), ["there is no README.md"]);
        let silent = made_up::tree(&[
            ("crates/a/src/lib.rs", ""),
            ("crates/a/README.md", "# a\n\n## Modules\n"),
        ]);
        assert_eq!(
            problems(&silent.path().join("crates/a")).unwrap(),
            ["README.md shows no use of the library"]
        );
        let sources = [("crates/a/src/one.rs", "/// As the reference does.\n")];
        let page = "# a\n\n## Modules\n\n- `one`: the first\n";
        assert_eq!(found(page, &sources), ["README.md does not say what the reference is"]);
        let defined = page.replace("# a\n", "# a\n\n*The reference* is another program.\n");
        assert_eq!(found(&defined, &sources), Vec::<String>::new());
    }
}
