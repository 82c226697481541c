//! The profile that confines commands on macOS, as text.
//!
//! There is no session behind it yet: this is what one would hand to `sandbox-exec -p`. It holds for
//! files alone; network and processes stay open, and a receipt would have to say so.

use std::collections::BTreeSet;

use crate::Result;
use crate::error::raise;

/// What is closed to begin with; in this language the last rule that matches counts.
const CLOSED: [&str; 12] = [
    "/Users",
    "/Volumes",
    "/Applications",
    "/Library",
    "/opt",
    "/etc",
    "/private/etc",
    "/tmp",
    "/private/tmp",
    "/private",
    "/var",
    "/usr",
];

/// What every program needs.
const SYSTEM: [&str; 4] = ["/usr/bin", "/usr/lib", "/bin", "/System"];

/// What commands may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The workspace.
    pub workspace: String,
    /// What may be read besides.
    pub readable: Vec<String>,
    /// What was granted, links followed, and whether for reading only.
    pub grants: Vec<(String, bool)>,
}

impl Profile {
    /// The profile as text.
    ///
    /// # Errors
    ///
    /// Fails if a grant is all of the file system.
    pub fn render(&self) -> Result<String> {
        if self.grants.iter().any(|(path, _)| path.trim_matches('/').is_empty()) {
            let message = "sandbox path grant path must not resolve to filesystem root";
            return Err(raise::value_error(message));
        }
        let mut rules = vec!["(version 1)".to_owned(), "(allow default)".to_owned()];
        // Nothing is opened by a program outside, which would not be confined.
        rules.push("(deny lsopen)".to_owned());
        for path in CLOSED {
            rules.push(rule("deny file-read-data", "subpath", path));
            rules.push(rule("deny file-write*", "subpath", path));
        }
        rules.push(readable("subpath", &self.workspace));
        rules.push(rule("allow file-write*", "subpath", &self.workspace));
        rules.extend(self.readable.iter().map(|path| readable("subpath", path)));
        rules.extend(self.grants.iter().map(|(path, _)| readable("subpath", path)));
        // What is granted for reading only stays closed to writers inside something that is not.
        for (is_closed, what) in [(false, "allow file-write*"), (true, "deny file-write*")] {
            let these = self.grants.iter().filter(|(_, read_only)| *read_only == is_closed);
            rules.extend(these.map(|(path, _)| rule(what, "subpath", path)));
        }
        rules.extend(SYSTEM.map(|path| readable("subpath", path)));
        rules.push(readable("literal", "/private/var/select/sh"));
        rules.push(rule("allow file-write*", "literal", "/dev/null"));
        Ok(rules.join("\n"))
    }
}

fn readable(kind: &str, path: &str) -> String {
    rule("allow file-read-data file-read-metadata", kind, path)
}

fn rule(what: &str, kind: &str, path: &str) -> String {
    let escaped = path.replace('\\', "\\\\").replace('"', "\\\"");
    format!("({what} ({kind} \"{escaped}\"))")
}

/// What a folder of the search path, or a program, needs to be read with it. `resolved` is where links
/// lead from it, both are folders; `home` is the caller's.
#[must_use]
pub fn read_roots(folder: &str, resolved: &str, home: &str) -> Vec<String> {
    let mut roots = BTreeSet::from([folder.to_owned(), resolved.to_owned()]);
    for root in ["/opt/homebrew", "/usr/local", "/Library/Frameworks"] {
        if lies_in(resolved, root) {
            roots.insert(root.to_owned());
        }
    }
    let home = home.trim_end_matches('/');
    if let Some(below) = resolved.strip_prefix(home).and_then(|rest| rest.strip_prefix('/')) {
        let first = below.split('/').next().unwrap_or_default();
        if first.starts_with('.') {
            roots.insert(format!("{home}/{first}"));
        } else if lies_in(below, "Library/Python") {
            roots.insert(format!("{home}/Library/Python"));
        }
    }
    let mut roots: Vec<_> = roots.into_iter().collect();
    roots.sort_by_cached_key(|root| {
        (root.split('/').filter(|part| !part.is_empty()).count(), root.clone())
    });
    roots
}

fn lies_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How a command is run with a profile.
#[must_use]
pub fn argv(sandbox_exec: &str, profile: &str, command: &[String]) -> Vec<String> {
    let wrapper = [sandbox_exec, "-p", profile].map(str::to_owned);
    wrapper.into_iter().chain(command.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closes_first_and_opens_then() {
        let profile = Profile {
            workspace: "/Users/me/ws \"x\"\\y".to_owned(),
            readable: vec!["/opt/homebrew".to_owned()],
            grants: vec![("/data/ro".to_owned(), true), ("/data".to_owned(), false)],
        };
        let text = profile.render().unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..3], ["(version 1)", "(allow default)", "(deny lsopen)"]);
        assert_eq!(lines[3], "(deny file-read-data (subpath \"/Users\"))");
        assert_eq!(lines[26], "(deny file-write* (subpath \"/usr\"))");
        assert_eq!(
            lines[27..],
            [
                r#"(allow file-read-data file-read-metadata (subpath "/Users/me/ws \"x\"\\y"))"#,
                r#"(allow file-write* (subpath "/Users/me/ws \"x\"\\y"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/opt/homebrew"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/data/ro"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/data"))"#,
                r#"(allow file-write* (subpath "/data"))"#,
                r#"(deny file-write* (subpath "/data/ro"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/usr/bin"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/usr/lib"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/bin"))"#,
                r#"(allow file-read-data file-read-metadata (subpath "/System"))"#,
                r#"(allow file-read-data file-read-metadata (literal "/private/var/select/sh"))"#,
                r#"(allow file-write* (literal "/dev/null"))"#,
            ]
        );
    }

    #[test]
    fn no_path_can_close_a_rule_early() {
        let workspace =
            "/w\") (allow file-read-data (subpath \"/\")) (deny x (subpath \"".to_owned();
        let text = Profile { workspace, ..Profile::default() }.render().unwrap();
        for line in text.lines() {
            let open = line.replace("\\\\", "").replace("\\\"", "");
            assert_eq!(open.matches('"').count() % 2, 0, "{line}");
            assert!(open.matches('"').count() <= 2, "{line}");
        }
    }

    #[test]
    fn refuses_a_grant_of_everything() {
        for path in ["/", "//", ""] {
            let grants = vec![(path.to_owned(), true)];
            let refused = Profile { grants, ..Profile::default() }.render();
            assert!(refused.unwrap_err().message().contains("filesystem root"), "{path:?}");
        }
    }

    #[test]
    fn finds_what_programs_need() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("/usr/bin", "/usr/bin", &["/usr/bin"]),
            (
                "/usr/local/bin",
                "/opt/homebrew/Cellar/x/bin",
                &["/opt/homebrew", "/usr/local/bin", "/opt/homebrew/Cellar/x/bin"],
            ),
            (
                "/Users/me/.pyenv/shims",
                "/Users/me/.pyenv/shims",
                &["/Users/me/.pyenv", "/Users/me/.pyenv/shims"],
            ),
            (
                "/Users/me/Library/Python/3.12/bin",
                "/Users/me/Library/Python/3.12/bin",
                &["/Users/me/Library/Python", "/Users/me/Library/Python/3.12/bin"],
            ),
            ("/Users/me/Library/x", "/Users/me/Library/x", &["/Users/me/Library/x"]),
            ("/Users/meg/.x/bin", "/Users/meg/.x/bin", &["/Users/meg/.x/bin"]),
        ];
        for (folder, resolved, want) in cases {
            assert_eq!(read_roots(folder, resolved, "/Users/me"), *want, "{folder}");
        }
    }

    #[test]
    fn wraps_a_command() {
        let command = ["sh", "-c", "true"].map(str::to_owned);
        let argv = argv("/usr/bin/sandbox-exec", "(version 1)", &command);
        assert_eq!(argv, ["/usr/bin/sandbox-exec", "-p", "(version 1)", "sh", "-c", "true"]);
    }
}
