//! The names git gives to contents.

use std::fmt;
use std::io::{self, Read};

use sha1::Digest as _;

/// Which hash a repository names its objects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum HashKind {
    #[default]
    Sha1,
    Sha256,
}

impl HashKind {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// A hasher that has heard the header of an object.
    pub(crate) fn object(self, kind: &str, size: u64) -> Hasher {
        let mut hasher = match self {
            Self::Sha1 => Hasher::Sha1(sha1::Sha1::new()),
            Self::Sha256 => Hasher::Sha256(sha2::Sha256::new()),
        };
        hasher.update(format!("{kind} {size}\0").as_bytes());
        hasher
    }

    /// The name of these bytes as a blob.
    pub(crate) fn of_blob(self, data: &[u8]) -> Oid {
        let mut hasher = self.object("blob", data.len() as u64);
        hasher.update(data);
        hasher.finish()
    }

    /// The name of what `data` gives as a blob, if that are `size` bytes. A file that is written to
    /// meanwhile has no name.
    pub(crate) fn of_stream(self, size: u64, data: &mut dyn Read) -> io::Result<Option<Oid>> {
        let mut hasher = self.object("blob", size);
        let mut seen = 0u64;
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            match data.read(&mut buffer) {
                Ok(0) => return Ok((seen == size).then(|| hasher.finish())),
                Ok(count) => {
                    seen += count as u64;
                    if seen > size {
                        return Ok(None);
                    }
                    hasher.update(buffer.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn zero(self) -> Oid {
        Oid { bytes: [0; 32], kind: self }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Hasher {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
}

impl Hasher {
    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(data),
            Self::Sha256(hasher) => hasher.update(data),
        }
    }

    pub(crate) fn finish(self) -> Oid {
        let mut bytes = [0; 32];
        match self {
            Self::Sha1(hasher) => {
                bytes[..20].copy_from_slice(&hasher.finalize());
                Oid { bytes, kind: HashKind::Sha1 }
            }
            Self::Sha256(hasher) => {
                bytes.copy_from_slice(&hasher.finalize());
                Oid { bytes, kind: HashKind::Sha256 }
            }
        }
    }
}

/// The name of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Oid {
    bytes: [u8; 32],
    kind: HashKind,
}

impl std::hash::Hash for Oid {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl Oid {
    /// An object's name in raw bytes, if they are as many as the hash has.
    pub(crate) fn from_bytes(kind: HashKind, raw: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        bytes.get_mut(..kind.len())?.copy_from_slice(raw.get(..kind.len())?);
        (raw.len() == kind.len()).then_some(Self { bytes, kind })
    }

    /// An object's name as git writes it.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let kind = match text.len() {
            40 => HashKind::Sha1,
            64 => HashKind::Sha256,
            _ => return None,
        };
        Self::from_bytes(kind, &hex::decode(text).ok()?)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.kind.len()).unwrap_or_default()
    }

    pub(crate) fn kind(&self) -> HashKind {
        self.kind
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.as_bytes()))
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contents_as_git_does() {
        let empty = HashKind::Sha1.of_blob(b"");
        assert_eq!(empty.to_string(), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        let hello = HashKind::Sha256.of_blob(b"hello\n");
        let want = "2cf8d83d9ee29543b34a87727421fdecb7e3f3a183d337639025de576db9ebb4";
        assert_eq!(hello.to_string(), want);
        assert_eq!(Oid::from_hex(want), Some(hello));
        assert_eq!(Oid::from_hex("zz"), None);
        let streamed = HashKind::Sha1.of_stream(0, &mut &b""[..]).unwrap();
        assert_eq!(streamed, Some(empty));
        // Longer or shorter than it was said to be.
        assert_eq!(HashKind::Sha1.of_stream(1, &mut &b""[..]).unwrap(), None);
        assert_eq!(HashKind::Sha1.of_stream(1, &mut &b"ab"[..]).unwrap(), None);
    }
}
