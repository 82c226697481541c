//! The form of a home as a whole: a file `format` in it holds one number.
//!
//! It goes up only when a version writes what earlier ones would misread. Whatever else is added (fields of records, kinds
//! of events, files) is passed over by earlier versions, so that two of them can use one home at a time. A home that
//! does not say has form 1.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::{Condition, Error, ErrorKind, Result};

/// The file.
const NAME: &str = "format";

/// The form of homes that this program reads and writes.
const FORMAT: u32 = 1;

/// Checks that this program can use a home, before it looks at anything else in it, and writes the form of a new one
/// down.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] for a home of a later version: nothing in it is read or changed.
pub fn check_home(home: &Path) -> Result<()> {
    let path = home.join(NAME);
    let failed = |error: &io::Error| {
        let message = format!("cannot tell the form of {}: {error}", path.display());
        Error::new(ErrorKind::Io, message).with_condition(Condition::HomeUnusable)
    };
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim().parse::<u32>() {
            Ok(1..=FORMAT) => Ok(()),
            Ok(found) if found > FORMAT => {
                let message = format!(
                    "the home {} has form {found}, and this program knows {FORMAT}: a later version wrote it",
                    home.display()
                );
                Err(Error::new(ErrorKind::Unsupported, message)
                    .with_context("path", path.display().to_string())
                    .with_condition(Condition::HomeNewer))
            }
            _ => Err(failed(&io::ErrorKind::InvalidData.into())),
        },
        // One of before says nothing, and a new one is told by what is made in it. That it cannot be written to is said by
        // whoever has to.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if home.is_dir() {
                drop(write(&path));
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(()),
        Err(error) => Err(failed(&error)),
    }
}

/// Writes the form down, whole or not at all.
fn write(path: &Path) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.new", std::process::id()));
    // A process of the same number may have left one; a link there is not followed.
    drop(fs::remove_file(&unfinished));
    fs::File::create_new(&unfinished)?.write_all(format!("{FORMAT}\n").as_bytes())?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_homes_of_later_versions_and_touches_nothing_in_them() {
        let home = tempfile::tempdir().unwrap();
        check_home(home.path()).unwrap();
        assert_eq!(fs::read_to_string(home.path().join(NAME)).unwrap(), "1\n");
        check_home(home.path()).unwrap();
        check_home(&home.path().join("not/there")).unwrap();
        fs::write(home.path().join(NAME), "2\n").unwrap();
        let error = check_home(home.path()).unwrap_err();
        assert_eq!(error.condition(), Some(&Condition::HomeNewer), "{error}");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        fs::write(home.path().join(NAME), "nonsense").unwrap();
        assert!(check_home(home.path()).is_err());
    }
}
