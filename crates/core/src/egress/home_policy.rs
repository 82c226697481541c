//! What a home says about the networks of all its sessions.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bastide_model::document::Format;
use bastide_model::policy::Policy;

use crate::{Error, ErrorKind, Result};

/// The file in a home whose rules come before those of every session.
pub const HOME_POLICY_FILE: &str = "policy.yaml";

/// More than anybody writes.
const MAX_BYTES: u64 = 1 << 20;

/// The policy of a home, if it has one. One that cannot be read is no reason to go on without it.
pub(super) fn read(home: &Path) -> Result<Option<Policy>> {
    let path = home.join(HOME_POLICY_FILE);
    let read = File::open(&path).and_then(|file| {
        let mut text = String::new();
        file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        match text.len() as u64 > MAX_BYTES {
            true => Err(std::io::Error::other("it has more than 1 MiB")),
            false => Ok(text),
        }
    });
    match read {
        Ok(text) => Policy::parse(&path.display().to_string(), &text, Format::Yaml).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("cannot read the policy of this home: {error}");
            Err(Error::new(ErrorKind::Io, message).with_context("path", path.display().to_string()))
        }
    }
}
