//! What signs audit logs.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::record::Digest;
use crate::backend::SessionId;
use crate::{Error, ErrorKind, Result};

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
        let mut seed = [0; 32];
        let made = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut seed));
        let written = made.and_then(|()| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
            file.write_all(format!("{}\n", hex::encode(seed)).as_bytes())?;
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
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(1024).read_to_string(&mut text));
        read.map_err(|error| failed(path, &error))?;
        let seed = Digest::from_hex(text.trim()).ok_or_else(|| {
            let message = format!("{} holds no key", path.display());
            Error::new(ErrorKind::InvalidInput, message).with_hint("it has 64 hexadecimal digits")
        })?;
        Self::of_seed(&seed.0)
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

    fn from_str(text: &str) -> Result<Self> {
        Digest::from_hex(text).map(|bytes| Self(bytes.0)).ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, format!("{text:?} is no public key"))
                .with_hint("it has 64 hexadecimal digits")
        })
    }
}

impl fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuditKey").field(&self.public().to_string()).finish()
    }
}
