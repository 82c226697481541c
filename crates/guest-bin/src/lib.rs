#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod stamp;
mod unfinished;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use unfinished::Unfinished;

/// The guest program, compressed: it is unpacked once on a machine, and copied with every program that embeds
/// it.
static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bastide-guest.zst"));

/// The length of the guest program, in bytes.
const LENGTH: &str = env!("BASTIDE_GUEST_LENGTH");

/// The BLAKE3 hash of the guest program, in hexadecimal.
pub const HASH: &str = env!("BASTIDE_GUEST_HASH");

/// Its permissions: it is no secret, and nobody changes it.
const MODE: u32 = 0o555;

/// A guest program on disk that is known to be the embedded one.
///
/// It is held open from the moment it was checked, and started through that descriptor, so that
/// nobody can put another file in its place between the check and the use.
#[derive(Debug)]
pub struct GuestBinary {
    path: PathBuf,
    file: OwnedFd,
}

impl GuestBinary {
    /// Writes the guest into the folder `cache`, under its hash, unless it is there already; and checks
    /// that what is there is what was embedded.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be made or written to. A file with the right name and another
    /// content is replaced.
    pub fn install(cache: &Path) -> io::Result<Self> {
        // Where that cannot be told, the reason is; making it would only say that it exists.
        if !cache.try_exists()? {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(cache)?;
        }
        let path = cache.join(format!("guest-{HASH}"));
        if let Ok(file) = File::open(&path)
            && is_checked(&path, &file)?
        {
            // Users of a container are others to whoever owns the file.
            if file.metadata()?.permissions().mode() & 0o7777 != MODE {
                file.set_permissions(fs::Permissions::from_mode(MODE))?;
            }
            return Ok(Self { path, file: file.into() });
        }
        // Written under another name first: another process may be starting the same file now.
        let Unfinished { path: temporary, mut file, lock } = Unfinished::begin(&path, MODE)?;
        file.write_all(unpacked()?)?;
        // A later process believes what it finds by its times: it has to be on the disk before its name.
        file.sync_all()?;
        // A file that is open for writing cannot be executed.
        drop(file);
        fs::rename(&temporary, &path)?;
        drop(lock);
        let file = File::open(&path)?;
        if is_embedded(&file)? {
            return Ok(Self { path, file: file.into() });
        }
        let message = format!("{} changes while it is being written", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }

    /// The guest as it was embedded.
    ///
    /// # Errors
    ///
    /// Fails if this program is damaged.
    pub fn bytes(&self) -> io::Result<&'static [u8]> {
        unpacked()
    }

    /// Where the guest is.
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

/// The guest program, unpacked at its first use in a process.
fn unpacked() -> io::Result<&'static [u8]> {
    static UNPACKED: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(bytes) = UNPACKED.get() {
        return Ok(bytes);
    }
    let bytes = zstd::bulk::decompress(COMPRESSED, LENGTH.parse().map_err(io::Error::other)?)?;
    Ok(UNPACKED.get_or_init(|| bytes))
}

/// Whether a file is the embedded guest, by its content or because it was compared before.
fn is_checked(path: &Path, file: &File) -> io::Result<bool> {
    let seen = file.metadata()?;
    if stamp::is_known(path, &seen) {
        return Ok(true);
    }
    let is_embedded = is_embedded(file)?;
    if is_embedded {
        stamp::remember(path, &seen);
    }
    Ok(is_embedded)
}

fn is_embedded(mut file: &File) -> io::Result<bool> {
    let mut rest = unpacked()?;
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
