//! The secret by which a guest knows whoever made its session. What lies in a session's folder is the caller's alone;
//! on the rung `landlock` commands can change that, and then this and the caller's id are what is left.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bastide_proto::hello::{TOKEN_BYTES, Token};
use rustix::rand::{GetRandomFlags, getrandom};

/// The file of a session's folder that its token is in. No path inside leads to it.
const NAME: &str = "token";

/// Makes a token for a boot of a session.
pub(crate) fn make(dir: &Path) -> io::Result<Token> {
    let mut bytes = [0; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    let mut options = fs::File::options();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(dir.join(NAME))?.write_all(&bytes)?;
    Ok(Token(bytes))
}

/// The token of a session.
pub(crate) fn load(dir: &Path) -> io::Result<Token> {
    let bytes = fs::read(dir.join(NAME))?;
    let bytes = bytes.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Token(bytes))
}
