//! Programs that are not embedded here but in another program, which is installed with this one.
//!
//! What is loaded into an interpreter is shipped together with the command `bastide`. The command has the programs in it,
//! because it has to work alone; what is loaded beside it reads them from there, and believes nothing that has not the
//! hash it was built with.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::program::unpack;

/// Says where the programs may be that have the embedded ones in them.
type Find = Box<dyn Fn() -> Vec<PathBuf> + Send + Sync>;

static FIND: OnceLock<Find> = OnceLock::new();

/// Tells where to look for the program that carries what is not embedded here. It is asked when something has to be
/// unpacked, and the first one that is told stays.
pub fn set_carrier(find: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) {
    // Whoever is second says the same: it is about where this library is installed.
    drop(FIND.set(Box::new(find)));
}

/// Where the programs may be.
pub(crate) fn carriers() -> Vec<PathBuf> {
    FIND.get().map(|find| find()).unwrap_or_default()
}

/// Where in its carrier a program lies, compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CarrierRange {
    offset: u64,
    length: usize,
}

impl CarrierRange {
    /// Reads `OFFSET:LENGTH`, which a build script wrote. `None` where the program is embedded.
    pub(crate) fn parse(text: &str) -> io::Result<Option<Self>> {
        if text.is_empty() {
            return Ok(None);
        }
        let number = |part: &str| part.parse::<u64>().map_err(io::Error::other);
        let (offset, length) = text.split_once(':').unwrap_or((text, ""));
        let length = usize::try_from(number(length)?).map_err(io::Error::other)?;
        Ok(Some(Self { offset: number(offset)?, length }))
    }

    /// The program `name` of that length and hash, from the first carrier that has it.
    pub(crate) fn read(
        self,
        name: &str,
        length: usize,
        hash: &str,
        carriers: &[PathBuf],
    ) -> io::Result<Vec<u8>> {
        let mut looked_at = Vec::new();
        for path in carriers {
            match self.read_from(path, length, hash) {
                Ok(bytes) => return Ok(bytes),
                Err(why) => looked_at.push(format!("{}: {why}", path.display())),
            }
        }
        let message = format!(
            "the program `bastide` of this version, which has the {name} in it, cannot be read where it was installed ({}): install \
             the package again",
            looked_at.join("; ")
        );
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }

    fn read_from(self, carrier: &Path, length: usize, hash: &str) -> io::Result<Vec<u8>> {
        let file = File::open(carrier)?;
        let mut compressed = vec![0; self.length];
        let read = file.read_exact_at(&mut compressed, self.offset);
        // One that ends before, or has something else there, is as much another version as one with another program.
        let bytes = read.and_then(|()| unpack(&compressed, length));
        match bytes {
            Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == hash => Ok(bytes),
            _ => Err(io::Error::other("another version, or another program")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use lzma_rust2::{XzOptions, XzWriter};

    use super::*;

    fn by_xz(bytes: &[u8]) -> Vec<u8> {
        let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(1)).unwrap();
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    /// Both ways in which build scripts compress.
    #[test]
    fn reads_a_program_from_the_first_file_that_has_it() {
        reads_what_was_compressed(|bytes| zstd::bulk::compress(bytes, 3).unwrap());
        reads_what_was_compressed(by_xz);
    }

    fn reads_what_was_compressed(compress: impl Fn(&[u8]) -> Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let program = b"the guest, many times the guest".repeat(100);
        let compressed = compress(&program);
        let older = compress(&b"The Guest, many times the guest".repeat(100));
        let larger = compress(&b"the guest, many times the guest".repeat(101));
        let hash = blake3::hash(&program).to_hex().to_string();
        let place = format!("4:{}", compressed.len());
        let place = CarrierRange::parse(&place).unwrap().unwrap();
        let write = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, [b"\x7fELF", content, b"the end"].concat()).unwrap();
            path
        };
        let short = folder.path().join("short");
        fs::write(&short, b"#!/bin/sh").unwrap();
        let missing = folder.path().join("missing");
        let (other, more) = (write("other", &older), write("more", &larger));
        let right = write("right", &compressed);
        let read = |carriers: &[PathBuf]| place.read("guest", program.len(), &hash, carriers);
        let wrong = [missing, short, other, more];
        assert_eq!(read(&[&wrong[..], &[right]].concat()).unwrap(), program);
        let error = read(&wrong).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let said = error.to_string();
        let another = "another version";
        for (path, why) in wrong.iter().zip(["No such file", another, another, another]) {
            assert!(said.contains(&format!("{}: {why}", path.display())), "{said}");
        }
    }

    #[test]
    fn knows_what_is_embedded() {
        assert_eq!(CarrierRange::parse("").unwrap(), None);
        assert!(CarrierRange::parse("12").is_err());
    }
}
