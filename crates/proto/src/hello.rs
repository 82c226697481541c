//! The handshake: one fixed-size greeting each way, before anything else on a connection.
//!
//! The host speaks first. Both greetings have a fixed size, so that neither side reads a length
//! from a peer it does not know yet.

use crate::VERSION;

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

const HELLO: &[u8; 8] = b"BASTIDE>";
const WELCOME: &[u8; 8] = b"BASTIDE<";

/// Why a greeting was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// The other end does not speak this protocol at all.
    #[error("the other end is not Bastide")]
    NotBastide,
    /// The other end is another build.
    #[error("the other end speaks protocol version {theirs}, this end {VERSION}")]
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

/// The greeting of a host.
#[must_use]
pub fn hello(token: &Token) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(HELLO);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&token.0);
    bytes
}

/// Checks the greeting of a host against the token of the session.
///
/// # Errors
///
/// Fails if the host is not one we can or may talk to.
pub fn check_hello(bytes: &[u8; HELLO_BYTES], token: &Token) -> Result<(), HelloError> {
    check(bytes, HELLO)?;
    // Every byte is looked at, so that the time taken says nothing about how many were right.
    let wrong = bytes[12..].iter().zip(&token.0).fold(0, |wrong, (a, b)| wrong | (a ^ b));
    if wrong == 0 { Ok(()) } else { Err(HelloError::Token) }
}

/// The greeting of a guest.
#[must_use]
pub fn welcome() -> [u8; WELCOME_BYTES] {
    let mut bytes = [0; WELCOME_BYTES];
    bytes[..8].copy_from_slice(WELCOME);
    bytes[8..].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Checks the greeting of a guest.
///
/// # Errors
///
/// Fails if the guest is not one we can talk to.
pub fn check_welcome(bytes: &[u8; WELCOME_BYTES]) -> Result<(), HelloError> {
    check(bytes, WELCOME)
}

fn check(bytes: &[u8], magic: &[u8; 8]) -> Result<(), HelloError> {
    let (head, rest) = bytes.split_at(8);
    if head != magic {
        return Err(HelloError::NotBastide);
    }
    let version = rest.first_chunk::<4>().ok_or(HelloError::NotBastide)?;
    match u32::from_le_bytes(*version) {
        VERSION => Ok(()),
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
        assert_eq!(check_hello(&good, &token), Ok(()));
        assert_eq!(check_hello(&good, &Token([8; TOKEN_BYTES])), Err(HelloError::Token));
        let mut other = good;
        other[0] ^= 1;
        assert_eq!(check_hello(&other, &token), Err(HelloError::NotBastide));
        let mut newer = good;
        newer[8] = newer[8].wrapping_add(1);
        assert_eq!(check_hello(&newer, &token), Err(HelloError::Version { theirs: VERSION + 1 }));
        assert_eq!(check_welcome(&welcome()), Ok(()));
    }
}
