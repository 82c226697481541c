//! What is needed to find a sandbox again.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bastide::host::process_identity::ProcessIdentity;
use bastide::{Error, ErrorKind, Machine, Origin, Result, SessionId, home_identity};
use bastide_proto::GuestPath;
use bastide_proto::hello::{TOKEN_BYTES, Token};
use serde::{Deserialize, Serialize};

/// The file of a session's folder that its token is in. No path inside leads to it.
const TOKEN_NAME: &str = "token";

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
    let dir = home.join("sessions").join(machine.id.as_str());
    let is_own = Origin::is_original(&dir, &state.dir).map_err(|error| {
        let message = format!("cannot tell whose session {} is: {error}", machine.id);
        Error::new(ErrorKind::Io, message).with_context("path", dir.display().to_string())
    })?;
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

/// Makes a token for a session that has none.
pub(crate) fn make_token(dir: &Path) -> io::Result<Token> {
    if let Ok(token) = load_token(dir) {
        return Ok(token);
    }
    let mut bytes = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    let mut options = fs::File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600);
    file.open(dir.join(TOKEN_NAME))?.write_all(&bytes)?;
    Ok(Token(bytes))
}

/// The token of a session.
pub(crate) fn load_token(dir: &Path) -> io::Result<Token> {
    let bytes = fs::read(dir.join(TOKEN_NAME))?;
    let bytes = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Token(bytes))
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
