//! What is needed to find a sandbox again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide::host::own_folder;
use bastide::host::process_identity::ProcessIdentity;
use bastide::{Error, ErrorKind, Machine, Result, SessionId, home_identity};
use bastide_proto::GuestPath;
use serde::{Deserialize, Serialize};

/// How the names of our sandboxes begin.
const PREFIX: &str = "bastide-";

/// How much of a home's identity is in them.
const HOME_DIGITS: usize = 8;

/// The folder of a home that says that it has had sandboxes.
const USED: &str = "sbx";

/// What is needed to find a sandbox again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) dir: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) sandbox: String,
    /// The process of this host that keeps the guest running.
    pub(crate) keeper: ProcessIdentity,
    /// Where the workspace is, if the manifest did not say so.
    #[serde(default)]
    pub(crate) root: Option<GuestPath>,
}

pub(crate) fn state_of(machine: &Machine) -> Result<State> {
    State::deserialize(&machine.state).map_err(|error| {
        let message = format!("the state of session {} is damaged: {error}", machine.id);
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// The state of a machine on record, with the session's folder in this home; only the folder if it was
/// copied from another home, whose machine that is.
pub(crate) fn own_state(home: &Path, machine: &Machine) -> Result<(PathBuf, Option<State>)> {
    let state = state_of(machine)?;
    let (dir, is_own) = own_folder(home, machine, &state.dir)?;
    Ok((dir.clone(), is_own.then_some(State { dir, ..state })))
}

/// How the names of this home's sandboxes begin: `sbx` has no labels, and other homes have theirs.
pub(crate) fn own_prefix(home: &Path) -> Result<String> {
    let identity = home_identity(home)?;
    let digits = identity.chars().filter(char::is_ascii_alphanumeric).take(HOME_DIGITS);
    Ok(format!("{PREFIX}{}-", digits.collect::<String>().to_ascii_lowercase()))
}

/// The name of a session's sandbox.
pub(crate) fn sandbox_name(home: &Path, id: &SessionId) -> Result<String> {
    Ok(format!("{}{id}", own_prefix(home)?))
}

/// Whether this home has ever had sessions in sandboxes.
#[must_use]
pub fn was_used(home: &Path) -> bool {
    home.join(USED).exists()
}

/// Notes that it has.
pub(crate) fn note_use(home: &Path) -> io::Result<()> {
    fs::create_dir_all(home.join(USED))
}
