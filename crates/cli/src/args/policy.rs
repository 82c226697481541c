//! The policy of a network, as it is written on the command line.

use std::path::{Path, PathBuf};

use bastide::egress::{EnvironmentReader, ShorthandError, allow_rule, with_shorthand};
use bastide::model::document::Format;
use bastide::model::policy::{Policy, Rule};
use bastide::{Error, ErrorKind, Result};

use crate::config;

/// The longest policy that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Which places commands reach
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct PolicyArgs {
    /// Policy of the network: JSON, YAML or TOML
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Place commands may reach, or a preset such as @packages (can be repeated)
    #[arg(long, value_name = "HOST[:PORT]")]
    allow: Vec<String>,

    /// Secret that stays outside and goes to one host: NAME=env:VAR@HOST, file:PATH or cmd:COMMAND (can be repeated);
    /// inside, the variable NAME holds a placeholder
    #[arg(long, value_name = "NAME=SOURCE@HOST")]
    secret: Vec<String>,

    /// Keep packages that come from presets for other sessions of this home; their TLS is read
    #[arg(long)]
    package_cache: bool,
}

impl PolicyArgs {
    /// The policy; none if none is asked for.
    pub(crate) fn policy(&self) -> Result<Option<Policy>> {
        if self.policy.is_none() && self.allow.is_empty() && self.secret.is_empty() {
            if self.package_cache {
                let message = "--package-cache: packages come from presets, and none is allowed";
                return Err(Error::new(ErrorKind::InvalidInput, message)
                    .with_context("option", "--package-cache")
                    .with_hint("give `--allow @packages` besides, or one of its parts"));
            }
            return Ok(None);
        }
        let mut policy = match &self.policy {
            Some(path) => read(path)?,
            None => Policy::default(),
        };
        policy.package_cache |= self.package_cache;
        // What is written on the command line is meant more than what is written in a file.
        let secrets = self
            .secret
            .iter()
            .map(|text| text.split_once('=').ok_or_else(|| wrong_secret(text, "it has no source")));
        let secrets: Vec<_> = secrets.collect::<Result<_>>()?;
        with_shorthand(policy, &self.allow, &secrets).map(Some).map_err(|error| match error {
            ShorthandError::Allow { text, why } => invalid_destination(&text, &why),
            ShorthandError::Secret { name, why } => wrong_secret(&name, &why),
            ShorthandError::Policy(error) => error,
            other => Error::new(ErrorKind::InvalidInput, format!("{other:?}")),
        })
    }
}

fn invalid_destination(text: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("--allow {text}: {why}"))
        .with_context("option", "--allow")
        .with_hint("write HOST, HOST:PORT, *.HOST, an address, or a preset such as @packages")
}

fn wrong_secret(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("--secret {name}: {why}"))
        .with_context("option", "--secret")
        .with_hint(
            "write NAME=env:VARIABLE@HOST, NAME=file:PATH@HOST or NAME=cmd:COMMAND@HOST, and `--allow HOST`",
        )
}

/// A policy of this machine, for whoever reads its variables.
pub(crate) fn environment() -> EnvironmentReader {
    EnvironmentReader::new(config::variable)
}

/// Reads a policy from a file.
pub(crate) fn read(path: &Path) -> Result<Policy> {
    use std::io::Read;
    let name = path.display().to_string();
    let text = std::fs::File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        match text.len() as u64 > MAX_BYTES {
            true => Err(std::io::Error::other("it has more than 1 MiB")),
            false => Ok(text),
        }
    });
    let text = text.map_err(|error| {
        Error::new(ErrorKind::NotFound, format!("cannot read the policy {name}: {error}"))
    })?;
    Policy::parse(&name, &text, Format::of_file(&name).unwrap_or(Format::Yaml))
}

/// A policy whose parts were put together here, as it would be read.
pub(crate) fn checked(policy: Policy) -> Result<Policy> {
    Policy::from_value(&policy.to_value())?;
    Ok(policy)
}

/// A rule that allows a place.
pub(crate) fn allow(text: &str) -> Result<Rule> {
    allow_rule(text).map_err(|why| invalid_destination(text, &why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(allow: &[&str], secret: &[&str]) -> PolicyArgs {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let (policy, package_cache) = (None, false);
        PolicyArgs { policy, allow: owned(allow), secret: owned(secret), package_cache }
    }

    #[test]
    fn reads_places_with_and_without_ports() {
        for (text, host, port) in [
            ("example.org", "example.org", None),
            ("example.org:8443", "example.org", Some(8443)),
            ("*.example.org", "*.example.org", None),
            ("10.0.0.0/8:5432", "10.0.0.0/8", Some(5432)),
            ("@packages", "@packages", None),
        ] {
            let rule = allow(text).unwrap();
            assert_eq!(rule.hosts[0].to_string(), host);
            assert_eq!(rule.ports.first().map(|range| range.first), port, "{text}");
        }
        for bad in ["", "a..b", "example.org:0", "example.org:x", "https://example.org", "a b"] {
            assert!(allow(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn takes_no_secret_that_could_not_be_used_and_repeats_no_source() {
        let policy = args(&["api.example.org"], &["KEY=cmd:echo a@b@api.example.org"]).policy();
        let policy = policy.unwrap().unwrap();
        assert_eq!(policy.secrets["KEY"].from.to_string(), "cmd:echo a@b");
        assert_eq!(policy.secrets["KEY"].env.as_deref(), Some("KEY"));
        let error = args(&[], &["KEY=env:A@api.example.org"]).policy().unwrap_err();
        assert!(error.message().contains("api.example.org"), "{error}");
        for bad in
            ["KEY", "KEY=env:A", "KEY=sk-hidden@api.example.org", "K-Y=env:A@api.example.org"]
        {
            let error = args(&["api.example.org"], &[bad]).policy().unwrap_err();
            assert!(!error.to_string().contains("sk-hidden"), "{error}");
        }
        assert!(args(&[], &[]).policy().unwrap().is_none());
    }
}
