//! Libraries name their options as they have them; only the command line names flags, and it has one for each option
//! that a library names.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::tree::{library_sources, shown};
use crate::shell::{Outcome, say, top};

/// Every flag of the command line, as its help has it.
const HELP: &str = "crates/cli/tests/cli/said.txt";

/// Where the command line says which flag an option is.
const TABLE: &str = "crates/cli/src/ui/option_names.rs";

/// Where a hint names options for which the command line has a hint of its own.
const CONDITIONS: &str = "crates/model/src/error/condition.rs";

/// Flags of other programs that are called as one of ours is: which, in what file, and whose they are.
const OF_OTHER_PROGRAMS: [(&str, &str, &[&str]); 19] = [
    ("backends/docker/src/checkup.rs", "systemctl", &["--user"]),
    ("backends/kubernetes/src/kubeconfig.rs", "kubectl", &["--kubeconfig"]),
    ("backends/sbx/src/boot.rs", "sbx", &["--cpus", "--memory", "--name"]),
    ("backends/sbx/src/dialect.rs", "sbx", &["--json", "--quiet"]),
    ("backends/sbx/src/global.rs", "sbx", &["--json"]),
    ("backends/sbx/src/listing.rs", "sbx", &["--json"]),
    ("backends/sbx/src/options.rs", "sbx", &["--help"]),
    ("backends/sbx/src/ports.rs", "sbx", &["--json"]),
    ("crates/core/src/workspace/git.rs", "git", &["--branch", "--detach"]),
    ("crates/core/src/workspace/git/host.rs", "git", &["--quiet"]),
    ("crates/core/src/workspace/mounts/inside.rs", "rclone", &["--timeout"]),
    ("crates/guest/src/server/files/races.rs", "unshare", &["--user"]),
    ("crates/model/src/mount/plan/blobfuse.rs", "blobfuse2", &["--read-only"]),
    ("crates/model/src/mount/plan/mountpoint.rs", "mount-s3", &["--read-only"]),
    ("crates/model/src/mount/plan/rclone.rs", "rclone", &["--help", "--read-only"]),
    ("crates/runs/src/agents/command.rs", "agents", &["--help", "--image", "--json", "--session"]),
    ("crates/runs/src/docker.rs", "docker", &["--all", "--quiet"]),
    (
        "crates/runs/src/docker/command.rs",
        "docker",
        &["--detach", "--label", "--name", "--network"],
    ),
    ("crates/runs/src/workspace/", "git", &["--quiet"]),
];

/// Fails on a flag in what a library says, and on an option it names that the command line has no flag for.
pub(crate) fn check() -> Outcome {
    let (wrong, options) = problems(&top(), &OF_OTHER_PROGRAMS)?;
    if wrong.is_empty() {
        say(&format!("libraries name {options} options, and no flag of ours"));
        return Ok(());
    }
    Err(wrong.join("; ").into())
}

/// What is wrong, and how many options are named where that is nothing.
fn problems(top: &Path, others: &[(&str, &str, &[&str])]) -> Outcome<(Vec<String>, usize)> {
    let help = fs::read_to_string(top.join(HELP))?;
    let ours: BTreeSet<_> = help.lines().filter_map(flag_of_help).collect();
    let table = literals(&fs::read_to_string(top.join(TABLE))?)?;
    let known: BTreeSet<_> = table.iter().flat_map(|text| paths(text)).collect();
    let types: BTreeSet<_> = known.iter().filter_map(|path| path.split("::").next()).collect();
    let (mut wrong, mut used, mut called) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for file in library_sources(top)? {
        let name = shown(&file, top);
        for text in literals(&fs::read_to_string(&file)?)? {
            for flag in flags(&text).filter(|flag| ours.contains(flag)) {
                let found = others
                    .iter()
                    .find(|(path, _, flags)| name.starts_with(path) && flags.contains(&flag));
                match found {
                    Some((path, ..)) => drop(called.insert((*path, flag.to_owned()))),
                    None => wrong.push(format!("{name}: {flag} is a flag, in {text}")),
                }
            }
            if name == CONDITIONS {
                continue;
            }
            let named = paths(&text)
                .filter(|path| path.split("::").next().is_some_and(|of| types.contains(of)));
            for path in named {
                if !known.contains(path) {
                    wrong.push(format!("{name}: {path} has no flag in {TABLE}"));
                }
                used.insert(path.to_owned());
            }
        }
    }
    let unused = known.iter().filter(|path| !used.contains(**path));
    wrong.extend(unused.map(|path| format!("{TABLE}: no library names {path}")));
    for (path, program, flags) in others {
        let uncalled = flags.iter().filter(|flag| !called.contains(&(*path, (**flag).to_owned())));
        wrong.extend(uncalled.map(|flag| format!("{path} gives {program} no {flag} any more")));
    }
    Ok((wrong, used.len()))
}

/// The flag that a line of a help is about.
fn flag_of_help(line: &str) -> Option<&str> {
    let text = line.strip_prefix("  ")?.trim_start();
    let is_short = text.starts_with('-') && text.get(2..4) == Some(", ");
    flags(if is_short { text.get(4..)? } else { text })
        .next()
        .filter(|flag| text.starts_with(flag) || is_short)
}

/// Every flag in a text: two dashes that begin a word, and a name.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-';
    text.match_indices("--").filter_map(move |(start, _)| {
        let before = text.get(..start)?;
        // What an escape such as `\n` ends is no word.
        let is_escape =
            before.len().checked_sub(2).and_then(|at| before.as_bytes().get(at)) == Some(&b'\\');
        let is_word = before.ends_with(|char: char| char.is_alphanumeric() || "-_".contains(char));
        let rest = text.get(start..)?;
        let end = rest.find(|char| !is_name(char)).unwrap_or(rest.len());
        let flag = rest.get(..end)?;
        let has_name = flag.as_bytes().get(2).is_some_and(u8::is_ascii_lowercase);
        (has_name && (is_escape || !is_word)).then_some(flag)
    })
}

/// Every path of a type and what belongs to it, such as `CreateOptions::network`.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == ':';
    text.split(move |char| !is_part(char)).filter(|word| {
        word.split_once("::").is_some_and(|(of, name)| {
            of.starts_with(|char: char| char.is_ascii_uppercase())
                && name.starts_with(char::is_alphabetic)
        })
    })
}

/// Every literal of a source file, as it is written; comments are none.
fn literals(source: &str) -> Outcome<Vec<String>> {
    let tokens = source.parse::<TokenStream>().map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    collect(tokens, &mut found);
    Ok(found)
}

fn collect(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Literal(literal) => found.push(literal.to_string()),
            TokenTree::Group(group) if !is_comment(&group) => collect(group.stream(), found),
            _ => {}
        }
    }
}

/// Whether that is what a comment in front of an item is read as: `[doc = "its text"]`.
fn is_comment(group: &Group) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket
        && matches!(first, Some(TokenTree::Ident(name)) if name == "doc")
}

#[cfg(test)]
mod tests {
    use super::super::tree::made_up;
    use super::*;

    const OURS: &str =
        "Usage: x\n  -v, --verbose  More\n      --pool <NAME>  Pool, instead of --image\n";

    fn found(table: &str, library: &str) -> Vec<String> {
        let top = made_up::tree(&[
            (HELP, OURS),
            (TABLE, table),
            ("crates/cli/Cargo.toml", ""),
            ("crates/cli/src/main.rs", "const ALL: &str = \"--pool\";"),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", library),
        ]);
        problems(top.path(), &[("crates/a/src/lib.rs", "other", &["--verbose"])]).unwrap().0
    }

    #[test]
    fn finds_flags_of_ours_in_what_libraries_say() {
        let other = "const B: [&str; 1] = [\"--verbose\"];";
        let fine =
            "//! `--pool`\n/// --pool\nconst A: &str = \"a--pool --image ---pool xn--pool\"; ";
        assert_eq!(found("", &format!("{fine}{other}")), Vec::<String>::new());
        for bad in ["--pool", "leave \\\n --pool out", "say `--pool=x`", "a\\n--pool"] {
            let text = format!("fn a() {{ b(\"{bad}\") }}\n{other}");
            let wrong = found("", &text);
            assert_eq!(wrong.len(), 1, "{bad}: {wrong:?}");
            assert!(wrong[0].starts_with("crates/a/src/lib.rs: --pool is a flag"), "{wrong:?}");
        }
        assert_eq!(found("", fine), ["crates/a/src/lib.rs gives other no --verbose any more"]);
    }

    #[test]
    fn finds_options_that_have_no_flag_and_flags_of_no_option() {
        let table = "const FLAGS: [(&str, &str); 1] = [(\"Options::pool\", \"--pool\")];";
        let named = |path: &str| {
            found(table, &format!("const A: [&str; 2] = [\"--verbose\", \"leave `{path}` out\"];"))
        };
        assert_eq!(named("Options::pool"), Vec::<String>::new());
        let lost = format!("{TABLE}: no library names Options::pool");
        let unknown = format!("crates/a/src/lib.rs: Options::pol has no flag in {TABLE}");
        assert_eq!(named("Options::pol"), [unknown, lost.clone()]);
        assert_eq!(named("Client::resume"), [lost]);
    }
}
