//! The secret by which a guest knows whoever made its session. It lies in the session's folder, which is the caller's
//! alone; no path inside leads to it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bastide_proto::hello::{TOKEN_BYTES, Token};
use rustix::rand::{GetRandomFlags, getrandom};

/// The file of a session's folder that its token is in.
const NAME: &str = "token";

/// Makes a token for a session, in place of any it has.
///
/// # Errors
///
/// Fails if it cannot be written.
pub fn make(dir: &Path) -> io::Result<Token> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        let rest = bytes.get_mut(filled..).unwrap_or_default();
        filled += getrandom(rest, GetRandomFlags::empty())?;
    }
    let mut options = fs::File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(dir.join(NAME))?.write_all(&bytes)?;
    Ok(Token(bytes))
}

/// The token of a session.
///
/// # Errors
///
/// Fails if it has none that can be read.
pub fn load(dir: &Path) -> io::Result<Token> {
    let bytes = fs::read(dir.join(NAME))?;
    let bytes = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Token(bytes))
}

/// The token of a session; a new one if it has none.
///
/// # Errors
///
/// Fails if that cannot be written.
pub fn load_or_make(dir: &Path) -> io::Result<Token> {
    load(dir).or_else(|_| make(dir))
}
