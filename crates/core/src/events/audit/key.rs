//! What signs audit logs.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use curve25519_dalek::edwards::CompressedEdwardsY;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use super::record::Digest;
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result, lower_hex};

/// What to do about digits that are no key.
const COPY: &str = "copy it again from where it was printed";

/// The longest file that is read for a key.
const MAX_FILE: usize = 1024;

/// A key that signs audit logs (Ed25519).
#[derive(Clone)]
pub struct AuditKey(Arc<Ed25519KeyPair>);

/// The public half of an [`AuditKey`]: 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditPublicKey([u8; 32]);

impl AuditKey {
    /// Generates a key and writes it to a new file that only its owner can read.
    ///
    /// # Errors
    ///
    /// Fails if the file exists already or cannot be written.
    pub fn generate(path: &Path) -> Result<Self> {
        let mut seed = Zeroizing::new([0; 32]);
        let made = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut *seed));
        let written = made.and_then(|()| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
            let text = Zeroizing::new(hex::encode(*seed));
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            match path.parent() {
                Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
                _ => File::open(".")?.sync_all(),
            }
        });
        written.map_err(|error| failed(path, &error))?;
        Self::of_seed(&seed)
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read or does not hold a key.
    pub fn read(path: &Path) -> Result<Self> {
        // Of this length from the beginning: a text that grows leaves a copy behind.
        let mut text = Zeroizing::new(String::with_capacity(MAX_FILE + 1));
        let file = File::open(path).map(|file| file.take(MAX_FILE as u64));
        let read = file.and_then(|mut file| file.read_to_string(&mut text));
        read.map_err(|error| failed(path, &error))?;
        let seed = lower_hex::decode(text.trim()).map(Zeroizing::new).ok_or_else(|| {
            let message = format!("{} holds no key", path.display());
            Error::new(ErrorKind::InvalidInput, message).with_hint("it has 64 hexadecimal digits")
        })?;
        Self::of_seed(&seed)
    }

    fn of_seed(seed: &[u8; 32]) -> Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("cannot make a key: {error}"))
        })?;
        Ok(Self(Arc::new(pair)))
    }

    /// The public key, which verifies signatures of this key.
    #[must_use]
    pub fn public(&self) -> AuditPublicKey {
        let mut public = [0; 32];
        public.copy_from_slice(self.0.public_key().as_ref());
        AuditPublicKey(public)
    }

    /// Signs the state of a chain.
    pub(super) fn sign(&self, id: &SessionId, seq: u64, head: &Digest) -> String {
        hex::encode(self.0.sign(&signed(id, seq, head)).as_ref())
    }
}

impl AuditPublicKey {
    /// Whether this key signed the state of a chain.
    pub(super) fn signed(&self, id: &SessionId, seq: u64, head: &Digest, sig: &str) -> bool {
        let (Some(first), Some(second)) = (sig.get(..64), sig.get(64..)) else { return false };
        let halves = (Digest::from_hex(first), Digest::from_hex(second));
        let (Some(first), Some(second)) = halves else { return false };
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        key.verify(&signed(id, seq, head), &[first.0, second.0].concat()).is_ok()
    }
}

/// What is signed: it means one state of one chain and nothing else.
fn signed(id: &SessionId, seq: u64, head: &Digest) -> Vec<u8> {
    [b"bastide-audit/1 ", id.as_str().as_bytes(), b" ", &seq.to_be_bytes()[..], &head.0].concat()
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot use {} as a key: {error}", path.display()))
}

impl fmt::Display for AuditPublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for AuditPublicKey {
    type Err = Error;

    /// Reads the digits. Those that are no point of the curve are no key, and a point of small order is one that
    /// anybody can sign for.
    fn from_str(text: &str) -> Result<Self> {
        let refused = |why: &str, hint: &str| {
            let message = format!("{text:?} is no public key{why}");
            Error::new(ErrorKind::InvalidInput, message).with_hint(hint)
        };
        let bytes =
            lower_hex::decode(text).ok_or_else(|| refused("", "it has 64 hexadecimal digits"))?;
        let point = CompressedEdwardsY(bytes).decompress();
        let point = point.filter(|point| point.compress().0 == bytes);
        match point {
            None => Err(refused(": it is no point of the curve", COPY)),
            Some(point) if point.is_small_order() => {
                Err(refused(": anybody can sign for it", COPY))
            }
            Some(_) => Ok(Self(bytes)),
        }
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuditKey").field(&self.public().to_string()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The public key of the first test of RFC 8032.
    const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    #[test]
    fn refuses_what_is_no_key_and_what_anybody_could_sign_for() {
        let key = KEY.parse::<AuditPublicKey>().unwrap();
        assert_eq!(key.to_string(), KEY);
        let (zeros, ones) = ("0".repeat(60), "f".repeat(60));
        let no_key = [
            String::new(),
            KEY.to_uppercase(),
            KEY[2..].to_owned(),
            format!("{KEY}00"),
            // No point has this coordinate, and the next one is a point spelled otherwise.
            format!("02{zeros}00"),
            format!("ed{ones}7f"),
        ];
        // All points of small order.
        let weak = [
            format!("01{zeros}00"),
            format!("ec{ones}7f"),
            format!("00{zeros}00"),
            format!("00{zeros}80"),
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05".to_owned(),
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85".to_owned(),
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a".to_owned(),
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa".to_owned(),
        ];
        let refused = |text: &String| text.parse::<AuditPublicKey>().unwrap_err().to_string();
        for text in &no_key {
            assert!(!refused(text).contains("anybody"), "{text}");
        }
        for text in &weak {
            assert!(refused(text).contains("anybody can sign"), "{text}");
        }
    }

    #[test]
    fn reads_the_key_it_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let made = AuditKey::generate(&path).unwrap().public();
        assert_eq!(AuditKey::read(&path).unwrap().public(), made);
        assert_eq!(made.to_string().parse::<AuditPublicKey>().unwrap(), made);
        std::fs::write(&path, "no key").unwrap();
        assert!(AuditKey::read(&path).unwrap_err().message().ends_with("holds no key"));
    }
}
