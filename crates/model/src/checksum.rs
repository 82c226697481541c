//! Checksums of contents.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a stream, in hexadecimal digits.
///
/// ```
/// let digest = bastide_model::checksum::sha256_hex(&b"abc"[..])?;
/// assert!(digest.starts_with("ba7816bf"));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The stream cannot be read.
pub fn sha256_hex(mut stream: impl Read) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => digest.update(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hex::encode(digest.finalize()))
}

/// The SHA-256 of bytes, in hexadecimal digits.
pub(crate) fn sha256_hex_of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
