//! The rungs of isolation, from the strongest down.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use bastide::{Condition, Error, ErrorKind, Isolation, Result, Rung};
use bastide_proto::boot::BootFailure;
use rustix::io::Errno;

use crate::namespaces::{self, Sysctl};
use crate::refusal::{because, refused};

/// Where the rung of a session is noted, in its folder: what was stopped goes on as it was.
const NOTE: &str = "rung";

/// What it is called while it is not whole.
const UNFINISHED_NOTE: &str = "rung.unfinished";

/// What `auto` tries, in order.
const LADDER: [Rung; 2] = [Rung::Namespaces, Rung::Landlock];

/// Which rungs are tried for a session, in order; `before` is the one it stood on by its record.
pub(crate) fn rungs(asked: Isolation, dir: &Path, before: Option<Rung>) -> Result<Vec<Rung>> {
    match (asked, noted(dir, before)?) {
        (Isolation::Exactly(rung), _) => Ok(vec![rung]),
        (Isolation::Auto, Some(rung)) => Ok(vec![rung]),
        (Isolation::Auto, None) => Ok(LADDER.to_vec()),
        (other, _) => {
            let message = format!("this backend cannot confine sessions by {other:?}");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// The rung a session stood on before. One that cannot be told is no leave to stand lower.
fn noted(dir: &Path, before: Option<Rung>) -> Result<Option<Rung>> {
    let path = dir.join(NOTE);
    let failed = |why: String| {
        let place = path.display();
        let message = format!("cannot tell from {place} how the session was confined: {why}");
        Error::new(ErrorKind::Io, message)
            .with_context("path", path.display().to_string())
            .with_condition(Condition::RungUnknown)
    };
    let word = match fs::read_to_string(&path) {
        // It was never on the disk when the machine lost its power; the record was.
        Ok(word) if word.is_empty() && before.is_some() => return Ok(before),
        Ok(word) => word,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(before),
        Err(error) => return Err(failed(error.to_string())),
    };
    let all = [Rung::Namespaces, Rung::Landlock, Rung::Unconfined];
    match all.into_iter().find(|rung| rung.as_str() == word) {
        Some(rung) => Ok(Some(rung)),
        None if word.is_empty() => Err(failed("it is empty".to_owned())),
        None => Err(failed(format!("{word:?} is no rung"))),
    }
}

/// Notes on which rung a session stands. A note that was there stays until the new one is whole: without one that can
/// be read the session does not go on. Of a session that is to outlive this process it is on the disk before it has its
/// name; the name is there with the record, which lies in the same folder and is synced after this.
pub(crate) fn note(dir: &Path, rung: Rung, is_tied: bool) -> io::Result<()> {
    let unfinished = dir.join(UNFINISHED_NOTE);
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(rung.as_str().as_bytes())?;
    if !is_tied {
        file.sync_all()?;
    }
    fs::rename(unfinished, dir.join(NOTE))
}

/// Whether a boot failed because the machine does not have the rung. Not where there is no room for one more
/// sandbox, nor where the session's own files are in the way: who is inside could bring both about, and would
/// be less confined for it.
pub(crate) fn is_missing(failure: &BootFailure) -> bool {
    says_missing(failure, namespaces::forbids)
}

fn says_missing(failure: &BootFailure, forbids: impl FnOnce() -> Option<Sysctl>) -> bool {
    let errnos =
        [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::INVAL, Errno::OPNOTSUPP, Errno::NODEV];
    let errno = Errno::from_raw_os_error(failure.errno);
    match errno {
        _ if failure.of_session => false,
        // The kernel says the same of a limit that is reached and of one that allows none at all.
        Errno::NOSPC => failure.no_namespaces && forbids().is_some(),
        _ => errnos.contains(&errno),
    }
}

/// The error where no rung could be had: that of the first, with what the others said; and why the last was not
/// tried, if it was not.
pub(crate) fn none_left(
    failures: &[(Rung, BootFailure)],
    untried: Option<&(Rung, Error)>,
) -> Error {
    let Some(((first, failure), others)) = failures.split_first() else {
        return Error::new(ErrorKind::Unsupported, "there is no way to confine a session");
    };
    let error = refused(failure).with_context("rung", first.as_str());
    if others.is_empty() && untried.is_none() {
        return error;
    }
    let each = others.iter().map(|(rung, failure)| {
        format!("nor does the rung `{}` work: {}", rung.as_str(), because(failure))
    });
    let untried = untried.map(|(rung, error)| {
        format!("the rung `{}` cannot hold this session: {}", rung.as_str(), error.message())
    });
    let message: Vec<_> =
        [error.message().to_owned()].into_iter().chain(each).chain(untried).collect();
    let mut all = Error::new(error.kind(), message.join("; ")).with_context("rung", first.as_str());
    if let Some(hint) = error.hint() {
        all = all.with_hint(hint);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rung_asked_for_by_name_never_becomes_another() {
        let folder = tempfile::tempdir().unwrap();
        let rungs = |asked| rungs(asked, folder.path(), None).unwrap();
        for rung in [Rung::Namespaces, Rung::Landlock, Rung::Unconfined] {
            assert_eq!(rungs(Isolation::Exactly(rung)), [rung]);
        }
        assert_eq!(rungs(Isolation::Auto), LADDER);
        note(folder.path(), Rung::Landlock, false).unwrap();
        assert_eq!(rungs(Isolation::Auto), [Rung::Landlock]);
        assert_eq!(rungs(Isolation::Exactly(Rung::Namespaces)), [Rung::Namespaces]);
    }

    #[test]
    fn keeps_the_note_that_is_there_where_none_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        note(folder.path(), Rung::Landlock, false).unwrap();
        // Every write there fails for want of room.
        std::os::unix::fs::symlink("/dev/full", folder.path().join(UNFINISHED_NOTE)).unwrap();
        let failed = note(folder.path(), Rung::Landlock, true).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(noted(folder.path(), None).unwrap(), Some(Rung::Landlock));
    }

    #[test]
    fn believes_the_record_where_the_note_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let before = Some(Rung::Landlock);
        let rungs = |before| rungs(Isolation::Auto, folder.path(), before);
        assert_eq!(rungs(before).unwrap(), [Rung::Landlock]);
        fs::write(folder.path().join(NOTE), "").unwrap();
        assert_eq!(rungs(before).unwrap(), [Rung::Landlock]);
        assert!(rungs(None).unwrap_err().message().contains("empty"));
        note(folder.path(), Rung::Namespaces, false).unwrap();
        assert_eq!(rungs(before).unwrap(), [Rung::Namespaces], "it is newer than the record");
    }

    #[test]
    fn takes_no_note_it_cannot_read_for_leave_to_stand_lower() {
        let folder = tempfile::tempdir().unwrap();
        let before = Some(Rung::Landlock);
        fs::write(folder.path().join(NOTE), "something newer").unwrap();
        assert!(rungs(Isolation::Auto, folder.path(), before).is_err());
        fs::remove_file(folder.path().join(NOTE)).unwrap();
        fs::create_dir(folder.path().join(NOTE)).unwrap();
        assert!(rungs(Isolation::Auto, folder.path(), before).is_err());
    }

    #[test]
    fn falls_only_where_the_machine_does_not_have_the_rung() {
        let failure = |errno: Errno, no_namespaces, of_session| BootFailure {
            step: "make the sandbox's namespaces".to_owned(),
            errno: errno.raw_os_error(),
            no_namespaces,
            of_session,
            hint: None,
            no_range: false,
        };
        let zero = || namespaces::setting_of("user", "0\n");
        for errno in [Errno::PERM, Errno::INVAL, Errno::NOSYS, Errno::ACCESS] {
            assert!(says_missing(&failure(errno, true, false), || None), "{errno}");
            assert!(!says_missing(&failure(errno, false, true), || None), "{errno} of a file");
        }
        let full = [
            Errno::NOSPC,
            Errno::USERS,
            Errno::AGAIN,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::BUSY,
            Errno::IO,
        ];
        for errno in full {
            assert!(!says_missing(&failure(errno, true, false), || None), "{errno}");
        }
        assert!(says_missing(&failure(Errno::NOSPC, true, false), zero), "none are allowed");
        assert!(!says_missing(&failure(Errno::NOSPC, false, false), zero), "a disk is full");
        assert!(!says_missing(&failure(Errno::AGAIN, true, false), zero));
    }

    #[test]
    fn never_falls_to_no_walls_at_all() {
        assert!(!LADDER.contains(&Rung::Unconfined));
    }
}
