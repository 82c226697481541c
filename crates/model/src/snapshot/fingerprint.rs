//! How a session knows that a workspace is still the one it left.

use serde_json::Value;

use crate::checksum::sha256_hex;
use crate::error::raise;
use crate::json_text::sorted_ascii;
use crate::lax::Dump as _;
use crate::{Error, ErrorClass, ErrorKind, Manifest, Result};

/// The way fingerprints are made, as they name it.
pub const FINGERPRINT_VERSION: &str = "workspace_tar_sha256_v1";

/// A workspace's fingerprint, and the way it was made.
///
/// ```
/// use bastide_model::snapshot::FingerprintRecord;
///
/// let record = FingerprintRecord::parse(br#"{"fingerprint":"ab","version":"v"}"#)?;
/// assert_eq!((record.fingerprint.as_str(), record.version.as_str()), ("ab", "v"));
/// assert_eq!(record.to_text(), r#"{"fingerprint":"ab","version":"v"}"#);
/// # Ok::<(), bastide_model::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintRecord {
    /// The fingerprint.
    pub fingerprint: String,
    /// The way it was made.
    pub version: String,
}

impl FingerprintRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// The payload is not UTF-8, not a JSON object, or a field is missing or empty.
    pub fn parse(payload: &[u8]) -> Result<Self> {
        let invalid =
            |class, error: String| Error::new(ErrorKind::InvalidInput, error).with_class(class);
        let text = std::str::from_utf8(payload)
            .map_err(|error| invalid(ErrorClass::UnicodeDecodeError, error.to_string()))?;
        let value: Value = serde_json::from_str(text)
            .map_err(|error| invalid(ErrorClass::JSONDecodeError, error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(raise::value_error("snapshot fingerprint payload must be a JSON object"));
        };
        let field = |name: &str| {
            let text = object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            text.map(str::to_owned).ok_or_else(|| {
                raise::value_error(format!("snapshot fingerprint payload is missing `{name}`"))
            })
        };
        Ok(Self { fingerprint: field("fingerprint")?, version: field("version")? })
    }

    /// The record as it is kept.
    #[must_use]
    pub fn to_text(&self) -> String {
        let record = serde_json::json!({
            "fingerprint": self.fingerprint,
            "version": self.version,
        });
        sorted_ascii(&record)
    }
}

/// The text of a manifest that [`resume_manifest_digest`] is made over.
///
/// # Errors
/// The manifest holds something that JSON cannot.
pub fn resume_manifest_text(manifest: &Manifest) -> Result<String> {
    Ok(sorted_ascii(&manifest.dump()?))
}

/// What stands for a manifest in a fingerprint: a session whose manifest changed is not resumed as
/// it was left.
///
/// # Errors
/// The manifest holds something that JSON cannot.
pub fn resume_manifest_digest(manifest: &Manifest) -> Result<String> {
    let text = resume_manifest_text(manifest)?;
    sha256_hex(text.as_bytes()).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}
