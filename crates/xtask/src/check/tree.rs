//! The files of this repository.

use std::fs;
use std::path::{Path, PathBuf};

use crate::shell::Outcome;

/// Folders of what is built or fetched, not written.
const LEFT_OUT: [&str; 5] = [".git", "target", "artifacts", "corpus", "__pycache__"];

/// Crates that are no libraries: the command line, and what is not shipped.
const NO_LIBRARIES: [&str; 5] =
    ["crates/cli", "crates/sbx-stand-in", "crates/test-servers", "crates/testkit", "crates/xtask"];

/// Every source file in a folder.
pub(super) fn sources(folder: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    let mut all = Vec::new();
    collect(folder, &mut all)?;
    files.extend(all.into_iter().filter(|path| path.extension().is_some_and(|end| end == "rs")));
    Ok(())
}

/// Every file in a folder.
pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if LEFT_OUT.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// The folder of every crate.
pub(super) fn crates(top: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in ["crates", "backends"] {
        for entry in fs::read_dir(top.join(folder))? {
            let path = entry?.path();
            if path.join("Cargo.toml").exists() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Every source file of every library.
pub(super) fn library_sources(top: &Path) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in crates(top)? {
        let src = folder.join("src");
        if src.exists() && !NO_LIBRARIES.contains(&shown(&folder, top).as_str()) {
            sources(&src, &mut files)?;
        }
    }
    files.sort();
    Ok(files)
}

/// A path as it is written below the top folder.
pub(super) fn shown(path: &Path, top: &Path) -> String {
    path.strip_prefix(top).unwrap_or(path).display().to_string()
}

/// Trees that checks have to find fault with.
#[cfg(test)]
pub(super) mod made_up {
    use std::fs;

    /// A tree of these files, removed when it is dropped.
    pub(crate) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for folder in ["crates", "backends", "examples", "fuzz", "python"] {
            fs::create_dir(top.path().join(folder)).unwrap();
        }
        for (path, text) in files {
            let path = top.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        top
    }
}
