//! Whose a session's folder is, and what goes with it: homes are moved and copied.

use std::path::{Path, PathBuf};

use bastide_proto::warden::GONE_PREFIX;

use crate::backend::{Machine, SessionId};
use crate::state::Origin;
use crate::{Error, ErrorKind, Result};

/// The folder of a machine's session in this home, and whether the machine is the folder's own. `recorded` is where the
/// folder was when the machine was booted; the machine of a folder that was copied is the original's.
///
/// # Errors
///
/// Fails if that cannot be told.
pub fn own_folder(home: &Path, machine: &Machine, recorded: &Path) -> Result<(PathBuf, bool)> {
    let dir = home.join("sessions").join(machine.id.as_str());
    let is_own = Origin::is_original(&dir, recorded).map_err(|error| {
        let message = format!("cannot tell whose session {} is: {error}", machine.id);
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    })?;
    Ok((dir, is_own))
}

/// The session whose things elsewhere (containers, objects of a cluster) go with a folder, if any do: not with a copy, and
/// not with what is left of a session whose name another one has by now.
#[must_use]
pub fn session_of_folder(home: &Path, folder: &Path) -> Option<SessionId> {
    let name = folder.file_name()?.to_str()?;
    let id = name.strip_prefix(GONE_PREFIX).unwrap_or(name);
    let id: SessionId = id.split('.').next()?.parse().ok()?;
    let place = home.join("sessions").join(id.as_str());
    let is_taken = name.starts_with(GONE_PREFIX) && place.try_exists().unwrap_or(true);
    let is_copy = !Origin::of(folder).is_ok_and(|origin| origin != Origin::Copied);
    (!is_taken && !is_copy).then_some(id)
}
