//! Names of sessions: links `names/NAME` to the folders of their sessions. A name whose link leads nowhere is
//! free, so it is given up in the moment the folder goes, whoever removes that.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

use super::{AGAIN, SESSIONS};
use crate::backend::SessionId;
use crate::host::sync_folder;
use crate::{Error, ErrorKind, Result};

/// The folder of all names.
const NAMES: &str = "names";

/// Held by whoever gives or takes back a name. No name begins with a dot.
const LOCK: &str = ".lock";

/// The longest name.
const LONGEST: usize = 63;

/// How long somebody else may take to give a name.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A name that somebody chose for a session: `[a-z0-9][a-z0-9_.-]{0,62}`, and never what could be an id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName(String);

impl SessionName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_inner = |byte: u8| is_word(byte) || matches!(byte, b'_' | b'.' | b'-');
        let begins_well = text.bytes().next().is_some_and(is_word);
        let refused = |hint: &str| {
            let message = format!("{text:?} cannot be the name of a session");
            Err(Error::new(ErrorKind::InvalidInput, message).with_hint(hint))
        };
        if !begins_well || text.len() > LONGEST || !text.bytes().all(is_inner) {
            return refused(
                "a name has up to 63 of the characters a-z, 0-9, `_`, `.` and `-`, and begins with a letter or a \
                 digit",
            );
        }
        if text.parse::<SessionId>().is_ok() {
            return refused("32 hexadecimal digits are an id; choose another name");
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Gives a session, whose folder is there, a name that no other session has.
pub(super) async fn give(home: &Path, name: &SessionName, id: &SessionId) -> Result<()> {
    let failed = |error: &io::Error| {
        let message = format!("cannot give session {id} the name {name}: {error}");
        Error::new(ErrorKind::Io, message)
    };
    let folder = home.join(NAMES);
    let made = DirBuilder::new().mode(0o700).recursive(true).create(&folder);
    made.and_then(|()| check_folder(home)).map_err(|error| failed(&error))?;
    let _lock = lock(&folder).await.map_err(|error| failed(&error))?;
    if let Some(other) = lookup(home, name.as_str()) {
        let message = format!("the name {name} belongs to session {other}");
        return Err(Error::new(ErrorKind::Conflict, message)
            .with_hint("choose another name, or remove that session"));
    }
    let place = || {
        let new = folder.join(format!(".{name}.new"));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(target(id), &new)?;
        fs::rename(&new, folder.join(name.as_str()))?;
        sync_folder(&folder)
    };
    place().map_err(|error| failed(&error))
}

/// The session of a home that has a name.
#[must_use]
pub fn session_named(home: &Path, name: &str) -> Option<SessionId> {
    lookup(home, name)
}

/// The session that has a name.
pub(super) fn lookup(home: &Path, name: &str) -> Option<SessionId> {
    let name: SessionName = name.parse().ok()?;
    let id = named_by(&home.join(NAMES).join(name.as_str()))?;
    let folder = home.join(SESSIONS).join(id.as_str());
    fs::symlink_metadata(folder).is_ok().then_some(id)
}

/// The names of all sessions that have one.
pub(super) fn all(home: &Path) -> HashMap<SessionId, SessionName> {
    let links = links(home).into_iter();
    let named = links.filter_map(|(name, link)| {
        let id = named_by(&link)?;
        home.join(SESSIONS).join(id.as_str()).exists().then_some((id, name))
    });
    named.collect()
}

/// Removes links that lead nowhere. Where that fails they stay, and are in nobody's way.
pub(super) fn prune(home: &Path) {
    let folder = home.join(NAMES);
    if check_folder(home).is_err() {
        return;
    }
    let Ok(lock) = File::options().read(true).write(true).open(folder.join(LOCK)) else { return };
    if lock.try_lock().is_err() {
        return;
    }
    for (name, link) in links(home) {
        // Whatever else somebody put there is not ours to remove.
        if named_by(&link).is_some() && lookup(home, name.as_str()).is_none() {
            drop(fs::remove_file(link));
        }
    }
}

/// A link in the place of the folder would lead to files of others.
fn check_folder(home: &Path) -> io::Result<()> {
    match fs::symlink_metadata(home.join(NAMES))?.is_dir() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotADirectory.into()),
    }
}

fn links(home: &Path) -> Vec<(SessionName, PathBuf)> {
    if check_folder(home).is_err() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(home.join(NAMES)) else { return Vec::new() };
    let links = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str()?.parse().ok()?;
        Some((name, entry.path()))
    });
    links.collect()
}

fn target(id: &SessionId) -> PathBuf {
    Path::new("..").join(SESSIONS).join(id.as_str())
}

/// The session that a link is for. One that leads anywhere else is nobody's name.
fn named_by(link: &Path) -> Option<SessionId> {
    let found = fs::read_link(link).ok()?;
    let id: SessionId = found.file_name()?.to_str()?.parse().ok()?;
    (found == target(&id)).then_some(id)
}

async fn lock(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let lock = options.open(folder.join(LOCK))?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                tokio::time::sleep(AGAIN).await;
            }
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn knows_what_a_name_is() {
        let long = "a".repeat(63);
        for name in ["a", "0", "web-1", "a.b_c-d", "deadbeef", long.as_str()] {
            assert!(name.parse::<SessionName>().is_ok(), "{name}");
        }
        let longer = "a".repeat(64);
        let id = "0123456789abcdef0123456789abcdef";
        for name in ["", "-a", ".a", "_a", "A", "a b", "a/b", "ä", "..", id, longer.as_str()] {
            assert!(name.parse::<SessionName>().is_err(), "{name}");
        }
    }

    #[test]
    fn removes_nothing_but_its_own_links_and_follows_none_in_the_place_of_its_folder() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (name, id): (SessionName, _) = ("web".parse().unwrap(), SessionId::random());
        run(give(home.path(), &name, &id)).unwrap();
        let names = home.path().join(NAMES);
        fs::write(names.join("readme"), "mine").unwrap();
        prune(home.path());
        assert!(!names.join("web").is_symlink(), "its session is gone");
        assert!(names.join("readme").exists());
        fs::write(other.path().join("passwd"), "theirs").unwrap();
        fs::write(other.path().join(LOCK), "").unwrap();
        fs::remove_dir_all(&names).unwrap();
        symlink(other.path(), &names).unwrap();
        prune(home.path());
        assert!(run(give(home.path(), &name, &id)).is_err());
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 2);
    }

    #[test]
    fn gives_a_name_to_one_of_many_and_frees_it_with_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let name: SessionName = "web".parse().unwrap();
        let session = || {
            let id = SessionId::random();
            fs::create_dir_all(home.path().join(SESSIONS).join(id.as_str())).unwrap();
            id
        };
        let ids: Vec<SessionId> = std::iter::repeat_with(session).take(8).collect();
        let given: Vec<_> = std::thread::scope(|scope| {
            let (folder, name) = (home.path(), &name);
            let give = |id| scope.spawn(move || run(give(folder, name, id)));
            let threads: Vec<_> = ids.iter().map(give).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(given.iter().filter(|given| given.is_ok()).count(), 1, "{given:?}");
        let owner = lookup(home.path(), "web").unwrap();
        assert_eq!(all(home.path()).get(&owner), Some(&name));
        fs::remove_dir(home.path().join(SESSIONS).join(owner.as_str())).unwrap();
        assert_eq!(lookup(home.path(), "web"), None);
        let next = ids.iter().find(|id| **id != owner).unwrap();
        run(give(home.path(), &name, next)).unwrap();
        assert_eq!(lookup(home.path(), "web").as_ref(), Some(next));
        fs::remove_dir(home.path().join(SESSIONS).join(next.as_str())).unwrap();
        prune(home.path());
        assert!(fs::symlink_metadata(home.path().join(NAMES).join("web")).is_err());
    }

    /// What somebody else put there leads to no session.
    #[test]
    fn believes_no_link_that_leads_elsewhere() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(NAMES)).unwrap();
        let id = SessionId::random();
        for (name, to) in [("a", format!("/etc/{id}")), ("b", "../../etc".into())] {
            symlink(to, home.path().join(NAMES).join(name)).unwrap();
            assert_eq!(lookup(home.path(), name), None);
        }
    }
}
