#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod carrier;
mod pod;
mod program;
mod stamp;
mod temp_file;

use std::io;
use std::path::{Path, PathBuf};

pub use carrier::set_carrier;
pub use pod::{PodFile, pod_files};
pub use program::{EmbeddedProgram, InstalledProgram};

/// The BLAKE3 hash of the guest program, in hexadecimal.
pub const HASH: &str = env!("BASTIDE_GUEST_HASH");

static GUEST: EmbeddedProgram = EmbeddedProgram::new(
    "guest",
    include_bytes!(concat!(env!("OUT_DIR"), "/bastide-guest.packed")),
    env!("BASTIDE_GUEST_LENGTH"),
    HASH,
    env!("BASTIDE_GUEST_PLACE"),
);

/// A guest program on disk that is known to be the embedded one.
#[derive(Debug)]
pub struct GuestBinary(InstalledProgram);

impl GuestBinary {
    /// Writes the guest into the folder `cache`, under its hash, unless it is there already; and checks
    /// that what is there is what was embedded.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be made or written to. A file with the right name and another
    /// content is replaced.
    pub fn install(cache: &Path) -> io::Result<Self> {
        GUEST.install(cache).map(Self)
    }

    /// The guest as it was embedded.
    ///
    /// # Errors
    ///
    /// Fails if this program is damaged.
    pub fn bytes(&self) -> io::Result<&'static [u8]> {
        GUEST.bytes()
    }

    /// Where the guest is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path by which this process can start exactly the file that was checked.
    #[must_use]
    pub fn checked_path(&self) -> PathBuf {
        self.0.checked_path()
    }
}
