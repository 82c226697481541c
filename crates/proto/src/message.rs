//! How one message becomes bytes.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A message could not be encoded or decoded.
#[derive(Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct MessageError(#[from] postcard::Error);

/// Encodes one message.
///
/// # Errors
///
/// Fails only for types that have no fixed form, which no type of this crate is.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, MessageError> {
    Ok(postcard::to_stdvec(message)?)
}

/// Encodes one message where there is room, without asking for memory.
///
/// # Errors
///
/// Fails if there is not enough room.
pub fn encode_into<'a, T: Serialize>(
    message: &T,
    room: &'a mut [u8],
) -> Result<&'a mut [u8], MessageError> {
    Ok(postcard::to_slice(message, room)?)
}

/// Decodes one message, which must fill `bytes` exactly: what is left over would be a lie about
/// the length.
///
/// # Errors
///
/// Fails on anything that is not exactly one message of type `T`.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let (message, rest) = postcard::take_from_bytes(bytes)?;
    if rest.is_empty() { Ok(message) } else { Err(postcard::Error::DeserializeBadEncoding.into()) }
}
