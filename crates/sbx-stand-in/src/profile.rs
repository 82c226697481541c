//! How releases differ.

/// A release, by its second number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) minor: u32,
}

impl Profile {
    pub(crate) fn of(version: &str) -> Self {
        let minor = version.trim().split('.').nth(1).and_then(|minor| minor.parse().ok());
        Self { minor: minor.unwrap_or(45) }
    }

    /// `--branch` and its work trees.
    pub(crate) fn has_branches(self) -> bool {
        self.minor <= 30
    }

    /// `--clone`.
    pub(crate) fn has_clones(self) -> bool {
        self.minor >= 31
    }

    /// Whether `--name` goes on with a sandbox of that name, rather than being for new ones only.
    pub(crate) fn name_attaches(self) -> bool {
        self.minor >= 33
    }

    /// Rules of one sandbox.
    pub(crate) fn has_scoped_rules(self) -> bool {
        self.minor >= 29
    }

    /// The sandbox of a rule by an option, rather than as a word.
    pub(crate) fn scopes_by_option(self) -> bool {
        self.minor >= 32
    }

    /// `--deny-network`, and the sandbox of a secret by an option.
    pub(crate) fn denies_at_create(self) -> bool {
        self.minor >= 38
    }

    /// `-e` for `run` and `create`.
    pub(crate) fn has_env(self) -> bool {
        self.minor >= 39
    }

    /// No folder at all, and JSON of what can be read.
    pub(crate) fn has_json_everywhere(self) -> bool {
        self.minor >= 42
    }

    /// `--no-progress` and `diagnose --json`.
    pub(crate) fn renamed_options(self) -> bool {
        self.minor >= 45
    }
}
