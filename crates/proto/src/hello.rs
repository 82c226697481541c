//! The handshake: one fixed-size greeting each way, before anything else on a connection.
//!
//! The host speaks first. Both greetings have a fixed size, so that neither side reads a length
//! from a peer it does not know yet.

use crate::{MIN_VERSION, VERSION};

/// What a host proves it knows before a guest listens to it.
pub const TOKEN_BYTES: usize = 32;

/// The size of the host's greeting.
pub const HELLO_BYTES: usize = 8 + 4 + TOKEN_BYTES;

/// The size of the guest's greeting.
pub const WELCOME_BYTES: usize = 8 + 4;

/// What a host sends ahead of its greeting where the connection is a Unix socket and it wants a side
/// channel: this byte, and with it one end of a pair of packet sockets. It is not the first byte of
/// any greeting.
///
/// Over the side channel the guest passes descriptors, each in one packet with the ticket (8 bytes,
/// little endian) that the host gave for it in a request. The host sends nothing over it.
pub const SIDE_CHANNEL: u8 = b'+';

/// What a host sends ahead of its greeting where it wants a conduit: a stream that outlives the one it begins on. After the
/// greetings comes which conduit that is, as `bastide-wire` says; it carries a link with greetings of its own.
pub const CONDUIT: u8 = b'=';

const HELLO: &[u8; 8] = b"BASTIDE>";
const WELCOME: &[u8; 8] = b"BASTIDE<";

/// Why a greeting was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The other end does not speak this protocol at all.
    #[error("the other end is not Bastide")]
    NotBastide,
    /// The other end speaks no version that this one does.
    #[error("the other end speaks protocol version {theirs}, this end {MIN_VERSION} to {VERSION}")]
    Version {
        /// The version the other end speaks.
        theirs: u32,
    },
    /// The token is wrong.
    #[error("the other end does not know the token of this session")]
    Token,
}

/// The secret of one session.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub [u8; TOKEN_BYTES]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The greeting of a host, to a guest that knows this version.
#[must_use]
pub fn hello(token: &Token) -> [u8; HELLO_BYTES] {
    hello_at(token, VERSION)
}

/// The greeting of a host, to a guest that knows no later version than this. Guests of version 1 hear nobody who speaks
/// of another.
#[must_use]
pub fn hello_at(token: &Token, version: u32) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(HELLO);
    bytes[8..12].copy_from_slice(&version.min(VERSION).to_le_bytes());
    bytes[12..].copy_from_slice(&token.0);
    bytes
}

/// Checks the greeting of a host against the token of the session. Returns the version that both speak.
///
/// # Errors
///
/// Fails if the host is not one we can or may talk to.
pub fn check_hello(bytes: &[u8; HELLO_BYTES], token: &Token) -> Result<u32, HelloError> {
    let version = check(bytes, HELLO)?.min(VERSION);
    // Every byte is looked at, so that the time taken says nothing about how many were right.
    let wrong = bytes[12..].iter().zip(&token.0).fold(0, |wrong, (a, b)| wrong | (a ^ b));
    if wrong == 0 { Ok(version) } else { Err(HelloError::Token) }
}

/// The greeting of a guest that knows this version.
#[must_use]
pub fn welcome() -> [u8; WELCOME_BYTES] {
    welcome_at(VERSION)
}

/// The greeting of a guest, with the version that both speak.
#[must_use]
pub fn welcome_at(version: u32) -> [u8; WELCOME_BYTES] {
    let mut bytes = [0; WELCOME_BYTES];
    bytes[..8].copy_from_slice(WELCOME);
    bytes[8..].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Checks the greeting of a guest. Returns the version that both speak.
///
/// # Errors
///
/// Fails if the guest is not one we can talk to.
pub fn check_welcome(bytes: &[u8; WELCOME_BYTES]) -> Result<u32, HelloError> {
    match check(bytes, WELCOME)? {
        // It was told which version we speak.
        theirs @ ..=VERSION => Ok(theirs),
        theirs => Err(HelloError::Version { theirs }),
    }
}

/// The version that a greeting names.
fn check(bytes: &[u8], magic: &[u8; 8]) -> Result<u32, HelloError> {
    let (head, rest) = bytes.split_at(8);
    if head != magic {
        return Err(HelloError::NotBastide);
    }
    let version = rest.first_chunk::<4>().ok_or(HelloError::NotBastide)?;
    match u32::from_le_bytes(*version) {
        theirs @ MIN_VERSION.. => Ok(theirs),
        theirs => Err(HelloError::Version { theirs }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_greetings_and_nothing_else() {
        let token = Token([7; TOKEN_BYTES]);
        let good = hello(&token);
        assert_eq!(check_hello(&good, &token), Ok(VERSION));
        assert_eq!(check_hello(&good, &Token([8; TOKEN_BYTES])), Err(HelloError::Token));
        let mut other = good;
        other[0] ^= 1;
        assert_eq!(check_hello(&other, &token), Err(HelloError::NotBastide));
        assert_eq!(check_welcome(&welcome()), Ok(VERSION));
    }

    #[test]
    fn speaks_the_older_version_of_both_ends() {
        let token = Token([7; TOKEN_BYTES]);
        assert_eq!(check_hello(&hello_at(&token, 1), &token), Ok(1));
        // A later host than this guest.
        let mut later = hello(&token);
        later[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
        assert_eq!(check_hello(&later, &token), Ok(VERSION));
        assert_eq!(
            hello_at(&token, VERSION + 1),
            hello(&token),
            "nobody promises more than it knows"
        );
        later[8..12].copy_from_slice(&0u32.to_le_bytes());
        assert_eq!(check_hello(&later, &token), Err(HelloError::Version { theirs: 0 }));
        assert_eq!(check_welcome(&welcome_at(1)), Ok(1));
        let theirs = VERSION + 1;
        assert_eq!(check_welcome(&welcome_at(theirs)), Err(HelloError::Version { theirs }));
    }
}
