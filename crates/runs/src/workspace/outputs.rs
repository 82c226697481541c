//! Files of the workspace that the caller named, copied out.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};

use bastide::{Error, ErrorKind, Result};

use crate::collect::{open_folder, open_regular, open_root, split};
use crate::shapes::Artifact;

/// Copies each named file that is there. Nothing is followed out of the workspace.
pub(super) fn collect(folder: &Path, results: &Path, wanted: &[String]) -> Result<Vec<Artifact>> {
    let mut collected = Vec::new();
    for name in wanted {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if name.is_empty() || !Path::new(name).components().all(is_plain) {
            let message = format!("the output {name:?} escapes workspace");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("name a file relative to the workspace, without `..`"));
        }
        match copy(folder, results, name) {
            Ok(path) => {
                let mut artifact = Artifact::new("file", path);
                artifact.metadata.insert("name".to_owned(), name.as_str().into());
                collected.push(artifact);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let message = format!("cannot collect the output {name}: {error}");
                return Err(Error::new(ErrorKind::Io, message));
            }
        }
    }
    Ok(collected)
}

fn copy(folder: &Path, results: &Path, name: &str) -> io::Result<PathBuf> {
    let (around, last) = split(name.as_bytes());
    let mut from = open_regular(open_folder(open_root(folder)?, around)?, last)?;
    let to = results.join("files").join(name);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    io::copy(&mut from, &mut File::create(&to)?)?;
    Ok(to)
}
