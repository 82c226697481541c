//! A disk of the bench's own: an ext4 file system in a file in memory.
//!
//! What is kept in memory (tmpfs) is read at every save, so saves that read only what changed are measured on
//! a disk; the machine's own is as fast as its neighbours let it be.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, run};

/// How large it may get: two workspaces of 512 MiB and what they are saved in, one of 1 GiB with its fork, its copies
/// and what it is saved in, and room. It takes what is in it.
const BYTES: u64 = 12 << 30;

/// A mounted image, gone when this is dropped.
#[derive(Debug)]
pub(super) struct Image {
    mounted: PathBuf,
    /// Removed last, with the image in it.
    _folder: tempfile::TempDir,
}

impl Image {
    /// Makes and mounts one, which takes root.
    pub(super) fn mount() -> Outcome<Self> {
        let folder = tempfile::tempdir_in("/dev/shm")?;
        let image = folder.path().join("image");
        File::create_new(&image)?.set_len(BYTES)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        let mounted = folder.path().join("disk");
        std::fs::create_dir(&mounted)?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted))?;
        Ok(Self { mounted, _folder: folder })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.mounted
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Nobody could do anything about it here; `mount` shows what is left.
        drop(run(Command::new("umount").arg(&self.mounted)));
    }
}
