//! A program that is embedded compressed, and unpacked once on a machine.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lzma_rust2::XzReader;

use crate::carrier::{self, CarrierRange};
use crate::stamp;
use crate::temp_file::{Sync, TempFile};

/// How what was compressed by xz begins.
const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";

/// The permissions of a program: it is no secret, and nobody changes it.
const MODE: u32 = 0o555;

/// An embedded program, compressed: it is unpacked once on a machine, and copied with every program that embeds it.
pub struct EmbeddedProgram {
    name: &'static str,
    compressed: &'static [u8],
    length: &'static str,
    hash: &'static str,
    /// Where another program has it, if it is not embedded here.
    place: &'static str,
    unpacked: OnceLock<Vec<u8>>,
}

impl EmbeddedProgram {
    /// A program with its length in bytes, in decimal, its BLAKE3 hash, in hexadecimal, and where
    /// [another program](crate::set_carrier) has it if it is not embedded here.
    #[must_use]
    pub const fn new(
        name: &'static str,
        compressed: &'static [u8],
        length: &'static str,
        hash: &'static str,
        place: &'static str,
    ) -> Self {
        Self { name, compressed, length, hash, place, unpacked: OnceLock::new() }
    }

    /// The program, unpacked at its first use in a process.
    ///
    /// # Errors
    ///
    /// Fails if what embeds it is damaged, or what carries it is not there.
    pub fn bytes(&self) -> io::Result<&[u8]> {
        if let Some(bytes) = self.unpacked.get() {
            return Ok(bytes);
        }
        let length = self.length.parse().map_err(io::Error::other)?;
        let bytes = match CarrierRange::parse(self.place)? {
            // Only one that is embedded as it is has its own length.
            None if self.compressed.len() == length => return Ok(self.compressed),
            None => unpack(self.compressed, length)?,
            Some(place) => place.read(self.name, length, self.hash, &carrier::carriers())?,
        };
        Ok(self.unpacked.get_or_init(|| bytes))
    }

    /// Writes the program into the folder `cache`, under its hash, unless it is there already; and checks
    /// that what is there is what was embedded.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be made or written to. A file with the right name and another
    /// content is replaced.
    pub fn install(&self, cache: &Path) -> io::Result<InstalledProgram> {
        // Where that cannot be told, the reason is; making it would only say that it exists.
        if !cache.try_exists()? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(cache)?;
        }
        let path = cache.join(format!("{}-{}", self.name, self.hash));
        if let Ok(file) = File::open(&path)
            && self.is_checked(&path, &file)?
        {
            // Users of a container are others to whoever owns the file.
            if file.metadata()?.permissions().mode() & 0o7777 != MODE {
                file.set_permissions(fs::Permissions::from_mode(MODE))?;
            }
            return Ok(InstalledProgram { path, file: file.into() });
        }
        // Written under another name first: another process may be starting the same file now.
        // A later process believes what it finds by its times: it has to be on the disk before its name.
        TempFile::write(&path, MODE, self.bytes()?, Sync::Yes)?;
        let file = File::open(&path)?;
        if self.is_embedded(&file)? {
            return Ok(InstalledProgram { path, file: file.into() });
        }
        let message = format!("{} changes while it is being written", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    /// Whether a file is the embedded program, by its content or because it was compared before.
    fn is_checked(&self, path: &Path, file: &File) -> io::Result<bool> {
        let seen = file.metadata()?;
        if stamp::is_known(path, &seen) {
            return Ok(true);
        }
        let is_embedded = self.is_embedded(file)?;
        if is_embedded {
            stamp::remember(path, &seen);
        }
        Ok(is_embedded)
    }

    fn is_embedded(&self, mut file: &File) -> io::Result<bool> {
        let mut rest = self.bytes()?;
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = file.read(&mut buffer)?;
            let Some((expected, others)) = rest.split_at_checked(read) else { return Ok(false) };
            if expected != buffer.get(..read).unwrap_or_default() {
                return Ok(false);
            }
            rest = others;
            if read == 0 {
                return Ok(rest.is_empty());
            }
        }
    }
}

/// Undoes what the build script did; which way that was is told by how it begins. Of what is longer than it should be, one byte
/// more is unpacked, and nobody takes it for the right one.
pub(crate) fn unpack(packed: &[u8], length: usize) -> io::Result<Vec<u8>> {
    if !packed.starts_with(XZ_MAGIC) {
        return zstd::bulk::decompress(packed, length);
    }
    let mut bytes = Vec::with_capacity(length);
    XzReader::new(packed, false).take(length as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl fmt::Debug for EmbeddedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, hash, .. } = self;
        f.debug_struct("EmbeddedProgram")
            .field("name", name)
            .field("hash", hash)
            .finish_non_exhaustive()
    }
}

/// A program on disk that is known to be the embedded one.
///
/// It is held open from the moment it was checked, and started through that descriptor, so that
/// nobody can put another file in its place between the check and the use.
#[derive(Debug)]
pub struct InstalledProgram {
    path: PathBuf,
    file: OwnedFd,
}

impl InstalledProgram {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path by which this process can start exactly the file that was checked.
    #[must_use]
    pub fn checked_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

impl AsFd for InstalledProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
