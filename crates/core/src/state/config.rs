//! What a home's owner decided for all sessions of it: `config.toml` in the home.

use std::fs;
use std::io;
use std::path::Path;

use bastide_model::document::{Document, Format};
use serde::{Deserialize, Deserializer};

use crate::{Error, ErrorKind, Result};

/// The file, in the home.
const NAME: &str = "config.toml";

/// The longest one.
const MOST: u64 = 64 * 1024;

/// What a session counts for that has no limit on memory, where nothing else is said.
const DEFAULT_MEMORY: u64 = 512 << 20;

/// What is decided for all sessions of a home.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HomeConfig {
    /// How many sessions run at once.
    pub(crate) max_sessions: Option<usize>,
    /// How many bytes of memory all sessions that run may have together.
    #[serde(deserialize_with = "bytes")]
    pub(crate) memory: Option<u64>,
    /// How many processors all sessions that run may have together, in thousandths.
    #[serde(deserialize_with = "millis")]
    pub(crate) cpus: Option<u64>,
    /// The memory of a session that asks for no limit, where there is a budget.
    #[serde(deserialize_with = "bytes")]
    pub(crate) default_memory: Option<u64>,
    /// The processors of a session that asks for no limit, where there is a budget, in thousandths.
    #[serde(deserialize_with = "millis")]
    pub(crate) default_cpus: Option<u64>,
}

impl HomeConfig {
    /// What is decided for the sessions of a home; nothing where there is no such file.
    pub(crate) fn load(home: &Path) -> Result<Self> {
        let path = home.join(NAME);
        let failed = |why: String| {
            let message = format!("cannot read {}: {why}", path.display());
            Error::new(ErrorKind::InvalidInput, message).with_hint(
                "it may say `max_sessions`, `memory`, `cpus`, `default_memory` and `default_cpus`",
            )
        };
        let text = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed(error.to_string())),
            Ok(found) if found.len() > MOST => return Err(failed("it is too long".to_owned())),
            Ok(_) => fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?,
        };
        let document = Document::parse(NAME, &text, Format::Toml)
            .map_err(|error| failed(error.message().to_owned()))?;
        Self::deserialize(document.value()).map_err(|error| failed(error.to_string()))
    }

    /// Whether anything is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.max_sessions.is_some() || self.memory.is_some() || self.cpus.is_some()
    }

    /// The memory of a session that asks for no limit.
    pub(crate) fn memory_of_others(&self) -> u64 {
        self.default_memory.unwrap_or(DEFAULT_MEMORY)
    }

    /// The processors of a session that asks for no limit.
    pub(crate) fn cpus_of_others(&self) -> u64 {
        self.default_cpus.unwrap_or(1000)
    }
}

/// A size: a number of bytes, or text such as `8g`.
fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(u64),
        Text(String),
    }
    let wrong = || serde::de::Error::custom("expected a size such as 512m or 8g");
    let size = match Size::deserialize(deserializer)? {
        Size::Number(bytes) => Some(bytes),
        Size::Text(text) => {
            let lower = text.to_ascii_lowercase();
            let units = [("k", 10), ("m", 20), ("g", 30), ("t", 40), ("", 0)];
            units.into_iter().find_map(|(unit, shift)| {
                let number: u64 = lower.strip_suffix(unit)?.parse().ok()?;
                number.checked_mul(1_u64 << shift)
            })
        }
    };
    size.filter(|size| *size > 0).map(Some).ok_or_else(wrong)
}

/// A number of processors, such as 4 or 1.5, in thousandths.
fn millis<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<u64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if !(0.001..=1e6).contains(&number) {
        return Err(serde::de::Error::custom("expected a number of processors such as 4 or 1.5"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it was checked to be positive and small"
    )]
    Ok(Some((number * 1000.0).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<HomeConfig> {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(NAME), text).unwrap();
        HomeConfig::load(home.path())
    }

    #[test]
    fn reads_what_a_home_allows_and_refuses_what_it_does_not_know() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(HomeConfig::load(home.path()).unwrap(), HomeConfig::default());
        let config = load("max_sessions = 20\nmemory = \"8g\"\ncpus = 1.5\n").unwrap();
        assert_eq!(
            (config.max_sessions, config.memory, config.cpus),
            (Some(20), Some(8 << 30), Some(1500))
        );
        assert_eq!((config.memory_of_others(), config.cpus_of_others()), (512 << 20, 1000));
        assert!(config.is_limited() && !load("default_memory = 1024\n").unwrap().is_limited());
        for wrong in ["max_session = 1", "memory = \"much\"", "cpus = 0", "memory = 0", "= 1"] {
            let error = load(wrong).unwrap_err();
            assert!(error.message().contains("config.toml"), "{error}");
        }
    }
}
