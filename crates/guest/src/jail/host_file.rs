//! Opening what was granted of the host, and nothing else that was put in its place.

use std::os::fd::OwnedFd;
use std::path::Path;

use bastide_proto::boot::InodeId;
use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

use super::{StepContext, StepError};

/// Opens a file or folder of the host, without a right to its content. Whoever looked at it before says which one it
/// was: a path is followed anew each time, and folders on the way may be ones that commands write to.
pub(crate) fn open_host_file(path: &Path, expected: Option<InodeId>) -> Result<OwnedFd, StepError> {
    let step = || format!("open {} of the host", path.display());
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).step(step)?;
    let found = identity_of(&file).step(step)?;
    if expected.is_some_and(|expected| expected != found) {
        let step = format!("use {}, which is another file than the one granted", path.display());
        return Err(StepError::from_errno(&step, libc::ESTALE).of_session());
    }
    Ok(file)
}

/// Which file something open is.
pub(crate) fn identity_of(file: &OwnedFd) -> Result<InodeId, Errno> {
    let found = fstat(file)?;
    Ok(InodeId { device: found.st_dev, inode: found.st_ino })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn opens_the_file_that_was_looked_at_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let [granted, other] = ["granted", "other"].map(|name| folder.path().join(name));
        fs::write(&granted, "").unwrap();
        fs::write(&other, "").unwrap();
        let identity = identity_of(&open_host_file(&granted, None).unwrap()).unwrap();
        assert!(open_host_file(&granted, Some(identity)).is_ok());
        fs::rename(&granted, folder.path().join("kept")).unwrap();
        std::os::unix::fs::symlink(&other, &granted).unwrap();
        let error = open_host_file(&granted, Some(identity)).unwrap_err();
        assert!(error.of_session && error.step.contains("granted"), "{error}");
    }
}
