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

/// How many bytes tell the length of a message, where messages follow each other on a stream.
pub const LENGTH_BYTES: usize = 4;

/// What stands in front of a message of so many bytes on a stream.
///
/// # Errors
///
/// Fails if no length can say so.
pub fn length_prefix(length: usize) -> Result<[u8; LENGTH_BYTES], MessageError> {
    let length = u32::try_from(length).map_err(|_| postcard::Error::SerializeBufferFull)?;
    Ok(length.to_le_bytes())
}

/// The length that stands in front of a message; `None` if it is more than the reader takes.
#[must_use]
pub fn prefixed_length(prefix: [u8; LENGTH_BYTES], most: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(prefix)).ok().filter(|length| *length <= most)
}

/// Encodes one message for a stream: its length, and the message.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_prefixed<T: Serialize>(message: &T) -> Result<Vec<u8>, MessageError> {
    let mut bytes = postcard::to_extend(message, vec![0; LENGTH_BYTES])?;
    let prefix = length_prefix(bytes.len() - LENGTH_BYTES)?;
    bytes[..LENGTH_BYTES].copy_from_slice(&prefix);
    Ok(bytes)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_tells_the_length_and_no_more_than_the_reader_takes() {
        let bytes = encode_prefixed(&(7u8, "seven")).unwrap();
        let (prefix, body) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
        assert_eq!(prefixed_length(*prefix, body.len()), Some(body.len()));
        assert_eq!(prefixed_length(*prefix, body.len() - 1), None);
        assert_eq!(body, encode(&(7u8, "seven")).unwrap());
        assert_eq!(decode::<(u8, String)>(body).unwrap(), (7, "seven".to_owned()));
    }
}
