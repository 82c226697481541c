//! How much an archive may cost.

use std::io::{Read, Write};

use serde_json::{Map, Value};

use super::refusal::{os_failure, over_limit};
use bastide_model::error::raise;
use bastide_model::{Error, Result};

/// What unpacking one archive may cost; a limit that is `None` is not enforced.
///
/// ```
/// use bastide_archive::ArchiveLimits;
///
/// let limits = ArchiveLimits { max_members: Some(10), ..ArchiveLimits::default() };
/// assert_eq!(limits.max_extracted_bytes, Some(4 << 30));
/// assert!(limits.validate().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of the archive itself.
    pub max_input_bytes: Option<u64>,
    /// Bytes its members say they unpack to.
    pub max_extracted_bytes: Option<u64>,
    /// Members, not counting the folder itself.
    pub max_members: Option<u64>,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self {
            max_input_bytes: Some(1 << 30),
            max_extracted_bytes: Some(4 << 30),
            max_members: Some(100_000),
        }
    }
}

impl ArchiveLimits {
    /// No limits at all.
    pub const NONE: Self =
        Self { max_input_bytes: None, max_extracted_bytes: None, max_members: None };

    /// Refuses limits nothing could meet.
    ///
    /// # Errors
    /// A limit is zero.
    pub fn validate(&self) -> Result<()> {
        match self.fields().into_iter().find(|(_, limit)| *limit == Some(0)) {
            Some((name, _)) => Err(too_small(name)),
            None => Ok(()),
        }
    }

    /// Reads limits from keyword arguments: an omitted one has its default, `null` is none.
    ///
    /// # Errors
    /// A key is unknown, a value is no whole number, or a limit is less than one.
    pub fn from_arguments(arguments: &Map<String, Value>) -> Result<Self> {
        let mut limits = Self::default();
        for (key, value) in arguments {
            let field = match key.as_str() {
                "max_input_bytes" => &mut limits.max_input_bytes,
                "max_extracted_bytes" => &mut limits.max_extracted_bytes,
                "max_members" => &mut limits.max_members,
                _ => return Err(raise::type_error(format!("unknown archive limit `{key}`"))),
            };
            *field = match value {
                Value::Null => None,
                Value::Number(number) if number.as_i64().is_some_and(|number| number < 1) => {
                    Some(0)
                }
                // Beyond 64 bits there is nothing left to limit.
                Value::Number(number) if !number.is_f64() => {
                    Some(number.as_u64().unwrap_or(u64::MAX))
                }
                _ => return Err(raise::type_error(format!("archive limit `{key}` is no number"))),
            };
        }
        limits.validate()?;
        Ok(limits)
    }

    fn fields(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("max_input_bytes", self.max_input_bytes),
            ("max_extracted_bytes", self.max_extracted_bytes),
            ("max_members", self.max_members),
        ]
    }
}

fn too_small(name: &str) -> Error {
    raise::value_error(format!("archive_limits.{name} must be at least 1"))
}

/// Counts what the members of one archive say they cost.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: ArchiveLimits,
    members: u64,
    bytes: u64,
}

impl Meter {
    pub(crate) fn new(limits: ArchiveLimits) -> Self {
        Self { limits, members: 0, bytes: 0 }
    }

    /// Counts a member and the bytes it says it has.
    pub(crate) fn count(&mut self, member: &[u8], bytes: u64) -> Result<()> {
        self.members = self.members.saturating_add(1);
        if let Some(limit) = self.limits.max_members
            && self.members > limit
        {
            let reason = "archive member count exceeds limit";
            return Err(over_limit(reason, limit, self.members, member));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(limit) = self.limits.max_extracted_bytes
            && self.bytes > limit
        {
            let reason = "archive extracted size exceeds limit";
            return Err(over_limit(reason, limit, self.bytes, member));
        }
        Ok(())
    }
}

/// Copies the archive to be stored at `path`, refusing it as soon as it is too long.
///
/// # Errors
/// The archive is longer than `limits` allow, or copying fails.
pub fn copy_input(
    data: &mut impl Read,
    out: &mut impl Write,
    limits: &ArchiveLimits,
    path: &str,
) -> Result<u64> {
    let mut buffer = vec![0; 8192];
    let mut total: u64 = 0;
    loop {
        let read = data.read(&mut buffer).map_err(os_failure)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else {
            return Ok(total);
        };
        total = total.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        if let Some(limit) = limits.max_input_bytes
            && total > limit
        {
            return Err(raise::workspace_archive_write(path)
                .with_context("reason", "archive input size exceeds limit")
                .with_context("limit", limit)
                .with_context("actual", total));
        }
        out.write_all(chunk).map_err(os_failure)?;
    }
}
