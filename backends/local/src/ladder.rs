//! The rungs of isolation, from the strongest down.

use std::fs;
use std::io;
use std::path::Path;

use bastide::{Error, ErrorKind, Isolation, Result, Rung};
use bastide_proto::boot::BootFailure;
use rustix::io::Errno;

use crate::refusal::{because, refused};

/// Where the rung of a session is noted, in its folder: what was stopped goes on as it was.
const NOTE: &str = "rung";

/// What `auto` tries, in order.
const LADDER: [Rung; 2] = [Rung::Namespaces, Rung::Landlock];

/// Which rungs are tried for a session, in order.
pub(crate) fn rungs(asked: Isolation, dir: &Path) -> Result<Vec<Rung>> {
    match (asked, noted(dir)) {
        (Isolation::Exactly(rung), _) => Ok(vec![rung]),
        (Isolation::Auto, Some(rung)) => Ok(vec![rung]),
        (Isolation::Auto, None) => Ok(LADDER.to_vec()),
        (other, _) => {
            let message = format!("this backend cannot confine sessions by {other:?}");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

fn noted(dir: &Path) -> Option<Rung> {
    let word = fs::read_to_string(dir.join(NOTE)).ok()?;
    let all = [Rung::Namespaces, Rung::Landlock, Rung::Unconfined];
    all.into_iter().find(|rung| rung.as_str() == word)
}

/// Notes on which rung a session stands.
pub(crate) fn note(dir: &Path, rung: Rung) -> io::Result<()> {
    fs::write(dir.join(NOTE), rung.as_str())
}

/// Whether a boot failed because the machine does not have the rung, and not for a reason that would
/// meet the next one too.
pub(crate) fn is_missing(failure: &BootFailure) -> bool {
    let errnos = [
        Errno::PERM,
        Errno::ACCESS,
        Errno::NOSYS,
        Errno::INVAL,
        Errno::OPNOTSUPP,
        Errno::NODEV,
        Errno::NOSPC,
        Errno::USERS,
    ];
    failure.no_user_namespaces || errnos.iter().any(|errno| errno.raw_os_error() == failure.errno)
}

/// The error where no rung could be had: that of the first, with what the others said.
pub(crate) fn none_left(failures: &[(Rung, BootFailure)]) -> Error {
    let Some(((first, failure), others)) = failures.split_first() else {
        return Error::new(ErrorKind::Unsupported, "there is no way to confine a session");
    };
    let error = refused(failure).with("rung", first.as_str());
    if others.is_empty() {
        return error;
    }
    let each = others.iter().map(|(rung, failure)| {
        format!("nor does the rung `{}` work: {}", rung.as_str(), because(failure))
    });
    let message = [error.message().to_owned()].into_iter().chain(each).collect::<Vec<_>>();
    let mut all = Error::new(error.kind(), message.join("; ")).with("rung", first.as_str());
    if let Some(hint) = error.hint_text() {
        all = all.hint(hint);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rung_asked_for_by_name_never_becomes_another() {
        let folder = tempfile::tempdir().unwrap();
        let rungs = |asked| rungs(asked, folder.path()).unwrap();
        for rung in [Rung::Namespaces, Rung::Landlock, Rung::Unconfined] {
            assert_eq!(rungs(Isolation::Exactly(rung)), [rung]);
        }
        assert_eq!(rungs(Isolation::Auto), LADDER);
        note(folder.path(), Rung::Landlock).unwrap();
        assert_eq!(rungs(Isolation::Auto), [Rung::Landlock]);
        assert_eq!(rungs(Isolation::Exactly(Rung::Namespaces)), [Rung::Namespaces]);
    }

    #[test]
    fn never_falls_to_no_walls_at_all() {
        assert!(!LADDER.contains(&Rung::Unconfined));
    }
}
