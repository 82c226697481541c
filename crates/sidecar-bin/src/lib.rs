#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bastide_guest_bin::{EmbeddedProgram, InstalledProgram};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

static SIDECAR: EmbeddedProgram = EmbeddedProgram::new(
    "sidecar",
    include_bytes!(concat!(env!("OUT_DIR"), "/bastide-sidecar.packed")),
    env!("BASTIDE_SIDECAR_LENGTH"),
    env!("BASTIDE_SIDECAR_HASH"),
    env!("BASTIDE_SIDECAR_PLACE"),
);

/// The sidecar program of a backend, unpacked when it is first asked for.
#[derive(Debug, Default)]
pub struct Sidecar(OnceCell<Arc<InstalledProgram>>);

impl Sidecar {
    /// The program in the folder `cache`, under its hash, known to be the embedded one.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be made or written to; the next call tries again.
    pub async fn install(&self, cache: PathBuf) -> io::Result<Arc<InstalledProgram>> {
        let installed = self.0.get_or_try_init(|| async {
            let installed = spawn_blocking(move || SIDECAR.install(&cache)).await;
            installed.map_err(io::Error::other)?.map(Arc::new)
        });
        installed.await.cloned()
    }
}
