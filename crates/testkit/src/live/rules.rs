//! The rules of `docs/differences.md` that cover differences between running sessions.

use std::fs;
use std::io;
use std::path::Path;

use super::LiveBackend;
use super::compare::Leaf;

/// Differences that are meant: one operation, one field, both values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The line it is on, for reports.
    pub line: usize,
    operation: String,
    field: String,
    reference: String,
    ours: String,
}

/// The heading of the table.
const HEADING: &str = "## Rules for running sessions";

/// Reads the rules for a backend, and for whoever this process is: some are about what only `root` or a `user` may do.
pub(super) fn read(side: &LiveBackend, own: &str) -> io::Result<Vec<Rule>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/differences.md");
    parse(&fs::read_to_string(path)?, side.name(), own).map_err(io::Error::other)
}

fn parse(text: &str, backend: &str, own: &str) -> Result<Vec<Rule>, String> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != HEADING).skip(1);
    let lines = lines.take_while(|(_, line)| !line.starts_with("## "));
    let rows = lines.filter(|(_, line)| line.starts_with("| `"));
    let mut rules = Vec::new();
    for (index, row) in rows {
        let line = index + 1;
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [backends, operation, field, reference, ours, why] = cells.as_slice() else {
            return Err(format!("docs/differences.md:{line}: a rule has six cells"));
        };
        if why.is_empty() {
            return Err(format!("docs/differences.md:{line}: a rule says why"));
        }
        // Values with a backtick in them stand in two, with a blank.
        let plain = |cell: &str| match cell.strip_prefix("`` ") {
            Some(quoted) => quoted.trim_end_matches(" ``").to_owned(),
            None => cell.trim_matches('`').to_owned(),
        };
        let is_own = |named: &str| match named.split_once(" as ") {
            Some((named, only)) => named == backend && only == own,
            None => named == backend,
        };
        if !plain(backends).split(", ").any(is_own) {
            continue;
        }
        rules.push(Rule {
            line,
            operation: plain(operation),
            field: plain(field),
            reference: plain(reference),
            ours: plain(ours),
        });
    }
    Ok(rules)
}

impl Rule {
    pub(super) fn covers(&self, operation: &str, leaf: &Leaf) -> bool {
        self.operation == operation
            && self.field == leaf.field
            && self.reference == leaf.reference
            && self.ours == leaf.ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows_of_its_own_table_and_backend() {
        let text = format!(
            "| `x` | 1 |\n{HEADING}\n\n| backend | operation | field | reference | Bastide | why |\n|---|\n\
             | `local, docker` | `rm` | `error.type` | `absent` | `\"A\"` | so |\n\
             | `docker` | `ls` | `result` | `1` | `2` | so |\n\
             | `local as user` | `ls` | `result` | `1` | `2` | so |\n## Next\n| `local` | `ls` |\n"
        );
        let rules = parse(&text, "local", "root").unwrap();
        assert_eq!(rules.len(), 1);
        let leaf = Leaf {
            field: "error.type".to_owned(),
            reference: "absent".to_owned(),
            ours: "\"A\"".to_owned(),
        };
        assert!(rules[0].covers("rm", &leaf) && !rules[0].covers("ls", &leaf));
        assert_eq!(parse(&text, "local", "user").unwrap().len(), 2);
        assert_eq!(parse(&text, "docker", "user").unwrap().len(), 2);
    }
}
