//! Folders and files that their owner closed, opened to be looked into.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Opens whatever below `folder` its owner cannot read, and says by path which modes it had. Root reads everything, and
/// sees the same.
pub(super) fn below(folder: &Path) -> io::Result<BTreeMap<String, u32>> {
    let mut closed = BTreeMap::new();
    open_all(folder, "", &mut closed)?;
    Ok(closed)
}

fn open_all(folder: &Path, prefix: &str, closed: &mut BTreeMap<String, u32>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let needed = match (kind.is_dir(), kind.is_file()) {
            (true, _) => 0o700,
            (_, true) => 0o400,
            _ => continue,
        };
        let path = entry.path();
        let shown = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let mode = match entry.metadata() {
            Ok(metadata) => metadata.permissions().mode() & 0o7777,
            // Whoever lists it says why it cannot be reached.
            Err(_) => continue,
        };
        if mode & needed != needed
            && fs::set_permissions(&path, Permissions::from_mode(mode | needed)).is_ok()
        {
            closed.insert(shown.clone(), mode);
        }
        if kind.is_dir() {
            open_all(&path, &format!("{shown}/"), closed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_what_is_closed_and_says_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let close =
            |name: &str, mode| fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        fs::create_dir_all(at("d/e")).unwrap();
        fs::write(at("d/e/f"), "x").unwrap();
        fs::write(at("plain"), "y").unwrap();
        close("d/e/f", 0o200);
        close("d/e", 0o100);
        close("d", 0);
        let closed = below(folder.path()).unwrap();
        let expected = [("d", 0), ("d/e", 0o100), ("d/e/f", 0o200)];
        assert_eq!(closed, expected.map(|(path, mode)| (path.to_owned(), mode)).into());
        assert_eq!(fs::read_to_string(at("d/e/f")).unwrap(), "x");
    }
}
