//! Carries out the steps of an unpacking plan with plain file operations. A product does this
//! beneath a held folder; here the scratch folder is nobody else's.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use bastide_archive::{Action, EntryPath, Obstacle, OnConflict, UnpackStep};
use bastide_model::PosixPath;
use bastide_model::paths::resolve_links;

use super::paths::Disk;

/// Carries out one step below `folder`, which has no symlink on the way.
pub(crate) fn carry_out(folder: &Path, step: &mut UnpackStep<'_>) -> Result<(), Obstacle> {
    let place = folder.join(OsStr::from_bytes(step.path.as_bytes()));
    refuse_links(folder, &step.path, step.existing)?;
    match (&mut step.action, step.existing) {
        (Action::Dir, OnConflict::Replaced) => {
            let is_something_else = |kind: fs::FileType| !kind.is_dir();
            if kind_of(&place).is_some_and(is_something_else) {
                fs::remove_file(&place).map_err(Obstacle::Entry)?;
            }
            fs::create_dir_all(&place).map_err(Obstacle::Entry)
        }
        (Action::Dir, OnConflict::Overwritten) => {
            fs::create_dir_all(&place).map_err(Obstacle::Entry)
        }
        (Action::File { mode, content }, existing) => {
            make_room(&place, existing)?;
            write_file(&place, *mode, content)
        }
        (Action::Link { target }, existing) => {
            make_room(&place, existing)?;
            symlink(OsStr::from_bytes(target), &place).map_err(Obstacle::Entry)
        }
    }
}

/// Makes parents, and removes what is to be replaced.
fn make_room(place: &Path, existing: OnConflict) -> Result<(), Obstacle> {
    if let Some(parent) = place.parent() {
        fs::create_dir_all(parent).map_err(Obstacle::Parents)?;
    }
    match (kind_of(place), existing) {
        (Some(kind), OnConflict::Replaced) if kind.is_dir() => Err(Obstacle::Folder),
        (Some(_), OnConflict::Replaced) => fs::remove_file(place).map_err(Obstacle::Entry),
        // Opening a pipe would wait for somebody to read it.
        (Some(kind), OnConflict::Overwritten) if !kind.is_file() => {
            Err(Obstacle::Entry(io::Error::other("there is no file")))
        }
        _ => Ok(()),
    }
}

fn write_file(place: &Path, mode: Option<u32>, content: &mut dyn Read) -> Result<(), Obstacle> {
    let mut options = File::options();
    options.write(true);
    match mode {
        Some(_) => options.create_new(true).mode(0o600),
        None => options.create(true).truncate(true),
    };
    let mut file = options.open(place).map_err(Obstacle::Entry)?;
    if let Err(obstacle) = copy(content, &mut file) {
        fs::remove_file(place).map_err(Obstacle::Entry)?;
        return Err(obstacle);
    }
    match mode {
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)).map_err(Obstacle::Entry),
        None => Ok(()),
    }
}

fn copy(content: &mut dyn Read, file: &mut File) -> Result<(), Obstacle> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => file.write_all(&buffer[..read]).map_err(Obstacle::Entry)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Obstacle::Content(error)),
        }
    }
}

/// Finds the first link on the way, and where links are not replaced, in the place itself.
fn refuse_links(folder: &Path, path: &EntryPath, existing: OnConflict) -> Result<(), Obstacle> {
    let last = path.names().count();
    let mut at = PathBuf::from(folder);
    let mut names = Vec::new();
    for (index, name) in path.names().enumerate() {
        if existing == OnConflict::Replaced && index + 1 == last {
            break;
        }
        at.push(OsStr::from_bytes(name));
        names.push(name);
        if kind_of(&at).is_some_and(|kind| kind.is_symlink()) {
            let parent = folder.join(OsStr::from_bytes(path.parent().as_bytes()));
            let parent = PosixPath::new(&parent.to_string_lossy());
            let leaves = resolve_links(&parent, &Disk)
                .is_ok_and(|parent| !Path::new(parent.as_str()).starts_with(folder));
            return Err(Obstacle::Link { at: EntryPath::new(&names.join(&b'/')), leaves });
        }
    }
    Ok(())
}

/// What is in a place, without following it.
fn kind_of(place: &Path) -> Option<fs::FileType> {
    fs::symlink_metadata(place).ok().map(|metadata| metadata.file_type())
}
