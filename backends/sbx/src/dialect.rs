//! Which release of `sbx` this is, and how that one is spoken to.

use std::fmt;
use std::time::Duration;

use bastide::{Error, ErrorKind, Result};

use crate::program::Sbx;

/// How long it may take to say its version.
const ANSWER: Duration = Duration::from_secs(30);

/// What the stand-in of our tests has in its version.
const STAND_IN: &str = "stand-in";

/// A release, as far as dialects differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

const fn release(minor: u32) -> Release {
    Release { major: 0, minor }
}

/// The first release whose policies can be those of one sandbox.
const SCOPED_POLICIES: Release = release(29);

/// The first one that names the sandbox of a policy by an option.
const POLICY_OPTION: Release = release(32);

/// The first one that denies hosts when a sandbox is made, and names the sandbox of a secret by an option.
const DENY_AT_CREATE: Release = release(38);

/// The first one that lists secrets as JSON.
const JSON_SECRETS: Release = release(42);

/// The first one with the present names of the options for quiet and for JSON.
const RENAMED_OPTIONS: Release = release(45);

/// How one release is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// The release.
    pub release: Release,
    /// Whether it is the stand-in of our tests, which has no microVMs.
    pub is_stand_in: bool,
}

impl Dialect {
    /// Asks the program which release it is.
    ///
    /// # Errors
    ///
    /// If it is not there, or is another program of the same name.
    pub async fn probe(sbx: &Sbx) -> Result<Self> {
        let output = sbx.check_call(&["version"], ANSWER).await?;
        let text = [output.text(), String::from_utf8_lossy(&output.stderr).into_owned()].concat();
        Self::read(&text).ok_or_else(|| {
            let program = sbx.program().display();
            let message =
                format!("{program} is not Docker's `sbx`: `sbx version` names no release");
            Error::new(ErrorKind::Unsupported, message).with_hint(crate::program::INSTALL)
        })
    }

    fn read(text: &str) -> Option<Self> {
        let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == 'v';
        let mut releases = text.split(|c: char| !is_part(c)).filter_map(|part| {
            let mut parts = part.trim_start_matches('v').split('.');
            let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some(Release { major, minor })
        });
        Some(Self { release: releases.next()?, is_stand_in: text.contains(STAND_IN) })
    }

    /// The call that says what is wrong, as JSON.
    pub(crate) fn diagnose(self) -> Vec<&'static str> {
        match self.release >= RENAMED_OPTIONS {
            true => vec!["diagnose", "--json"],
            false => vec!["diagnose", "-o", "json"],
        }
    }

    /// The option that makes `create` quiet.
    pub(crate) fn quiet(self) -> &'static str {
        if self.release >= RENAMED_OPTIONS { "--no-progress" } else { "--quiet" }
    }

    /// Whether a new sandbox can be closed to hosts from its beginning.
    pub(crate) fn denies_at_create(self) -> bool {
        self.release >= DENY_AT_CREATE
    }

    /// The call for a rule about hosts that holds for one sandbox.
    pub(crate) fn rule(self, decision: &str, sandbox: &str, hosts: &str) -> Result<Vec<String>> {
        if self.release < SCOPED_POLICIES {
            let message =
                format!("sbx {} has no network rules for one sandbox alone", self.release);
            return Err(Error::new(ErrorKind::Unsupported, message).with_hint(
                "update it; or make rules for the whole machine yourself, and choose the network \
                 `bridge`",
            ));
        }
        let mut args = vec!["policy", decision, "network"];
        match self.release >= POLICY_OPTION {
            true => args.extend(["--sandbox", sandbox, hosts]),
            false => args.extend([sandbox, hosts]),
        }
        Ok(args.into_iter().map(str::to_owned).collect())
    }

    /// The call that stores a secret for one sandbox, or for all of them. The value comes on standard input.
    pub(crate) fn set_secret(self, sandbox: Option<&str>, service: &str) -> Vec<String> {
        let args = match (sandbox, self.release >= DENY_AT_CREATE) {
            (Some(sandbox), true) => vec!["secret", "set", "--sandbox", sandbox, service],
            (Some(sandbox), false) => vec!["secret", "set", sandbox, service],
            (None, true) => vec!["secret", "set", service],
            (None, false) => vec!["secret", "set", "-g", service],
        };
        args.into_iter().map(str::to_owned).collect()
    }

    /// The call that forgets a secret of all sandboxes.
    pub(crate) fn remove_secret(self, service: &str) -> Vec<String> {
        let global = (self.release < DENY_AT_CREATE).then_some("-g");
        let args = ["secret", "rm"].into_iter().chain(global).chain([service, "-f"]);
        args.map(str::to_owned).collect()
    }

    /// The call that lists secrets of all sandboxes, and whether it answers in JSON.
    pub(crate) fn list_secrets(self, service: &str) -> (Vec<String>, bool) {
        let as_json = self.release >= JSON_SECRETS;
        let args = match as_json {
            true => vec!["secret", "ls", "--json"],
            false => vec!["secret", "ls", "-g", "--service", service],
        };
        (args.into_iter().map(str::to_owned).collect(), as_json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_from_what_it_says() {
        for (text, minor) in [
            ("sbx version: v0.28.3 0badc0ffee\n", 28),
            ("starting daemon...\nClient Version:  v0.45.1 abc\nServer Version:  v0.45.1", 45),
            ("0.33.0", 33),
        ] {
            assert_eq!(Dialect::read(text).unwrap().release, release(minor), "{text}");
        }
        for text in ["", "unknown command\n", "flash cards v\n"] {
            assert_eq!(Dialect::read(text), None, "{text}");
        }
        assert!(Dialect::read("sbx-stand-in v0.45.1").unwrap().is_stand_in);
    }

    #[test]
    fn each_release_is_spoken_to_in_its_own_words() {
        let of = |minor| Dialect { release: release(minor), is_stand_in: false };
        assert!(of(28).rule("deny", "n", "**").is_err());
        assert_eq!(of(30).rule("allow", "n", "a,b").unwrap()[2..], ["network", "n", "a,b"]);
        assert_eq!(of(45).rule("allow", "n", "a").unwrap()[3..], ["--sandbox", "n", "a"]);
        assert_eq!(of(28).set_secret(None, "openai"), ["secret", "set", "-g", "openai"]);
        assert_eq!(of(45).set_secret(None, "openai"), ["secret", "set", "openai"]);
        assert_eq!(of(33).set_secret(Some("n"), "openai"), ["secret", "set", "n", "openai"]);
        assert_eq!(of(28).diagnose(), ["diagnose", "-o", "json"]);
        assert_eq!((of(33).quiet(), of(45).quiet()), ("--quiet", "--no-progress"));
    }
}
