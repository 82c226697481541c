//! Brings the guest from an image that has it into a folder that a pod's container sees: the work of an init container.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Copies every file of a folder to another.
///
/// # Errors
///
/// Fails if one cannot be read or written.
pub fn run(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if !entry.file_type()?.is_file() {
            continue;
        }
        let target = to.join(entry.file_name());
        fs::copy(entry.path(), &target)?;
        // Anybody in the pod may start it, and nobody change it.
        fs::set_permissions(&target, fs::Permissions::from_mode(0o555))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_files_and_nothing_else() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(from.path().join("loader"), "program").unwrap();
        fs::create_dir(from.path().join("folder")).unwrap();
        run(from.path(), to.path()).unwrap();
        let names: Vec<_> =
            fs::read_dir(to.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["loader"]);
        let copied = to.path().join("loader");
        assert_eq!(fs::read(&copied).unwrap(), b"program");
        assert_eq!(fs::metadata(&copied).unwrap().permissions().mode() & 0o777, 0o555);
        assert!(run(&from.path().join("missing"), to.path()).is_err());
    }
}
