//! Files of the workspace that the caller named, copied out.

use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Component, Path, PathBuf};

use bastide::{Error, ErrorKind, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::collect::{LeftOut, open_folder, open_regular, open_root, split};
use crate::types::Artifact;

/// Refuses names that lead out of the workspace.
///
/// # Errors
///
/// [`ErrorKind::InvalidInput`], with the name.
pub(crate) fn check_names(wanted: &[String]) -> Result<()> {
    for name in wanted {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if name.is_empty() || !Path::new(name).components().all(is_plain) {
            let message = format!("the output {name:?} escapes workspace");
            return Err(Error::new(ErrorKind::InvalidInput, message)
                .with_hint("name a file relative to the workspace, without `..`"));
        }
    }
    Ok(())
}

/// Copies each named file that is there. Nothing is followed out of the workspace. What the agent made of one that is no
/// file is left out, and said.
pub(super) fn collect(
    folder: &Path,
    results: &Path,
    wanted: &[String],
    left_out: &mut Vec<LeftOut>,
) -> Result<Vec<Artifact>> {
    check_names(wanted)?;
    let mut collected = Vec::new();
    for name in wanted {
        match copy(folder, results, name) {
            Ok(path) => {
                let mut artifact = Artifact::new("file", path);
                artifact.metadata.insert("name".to_owned(), name.as_str().into());
                collected.push(artifact);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_no_file(&error) => {
                left_out.push(LeftOut { path: name.clone(), why: error.to_string() });
            }
            Err(error) => {
                let message = format!("cannot collect the output {name}: {error}");
                return Err(Error::new(ErrorKind::Io, message));
            }
        }
    }
    Ok(collected)
}

/// Whether something is not what was named, or not to be read: nothing that trying again would change.
fn is_no_file(error: &io::Error) -> bool {
    let codes = [Errno::LOOP, Errno::ISDIR, Errno::NOTDIR, Errno::ACCESS, Errno::NXIO];
    let is_known = |code: Errno| error.raw_os_error() == Some(code.raw_os_error());
    error.kind() == io::ErrorKind::Other || codes.into_iter().any(is_known)
}

fn copy(folder: &Path, results: &Path, name: &str) -> io::Result<PathBuf> {
    let (around, last) = split(name.as_bytes());
    let mut from = open_regular(open_folder(open_root(folder)?, around)?, last)?;
    let to = results.join("files").join(name);
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    copy_data(&mut from, &mut File::create(&to)?)?;
    Ok(to)
}

/// Copies a file without its holes: a sparse one takes no more room here than there.
fn copy_data(from: &mut File, to: &mut File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let data = match rustix::fs::seek(&*from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let hole = rustix::fs::seek(&*from, SeekFrom::Hole(data))?.min(length);
        from.seek(io::SeekFrom::Start(data))?;
        to.seek(io::SeekFrom::Start(data))?;
        if io::copy(&mut (&*from).take(hole.saturating_sub(data)), to)? == 0 {
            break;
        }
        at = hole;
    }
    Ok(())
}
