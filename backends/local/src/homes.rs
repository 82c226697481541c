//! Where people keep what is theirs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most that is read of the list of users.
const MAX_FILE: u64 = 1 << 20;

/// What it usually takes: read at once.
const USUAL_FILE: usize = 8 << 10;

/// Where homes are by custom, whoever the list of users names.
const AROUND_HOMES: &str = "/home";
const ROOTS: &str = "/root";

/// Every home that is known here, by each of its names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Homes(BTreeSet<PathBuf>);

/// The homes of this machine: those of its users, the caller's, and what lies in `/home`.
pub(crate) fn all() -> Homes {
    let mut passwd = Vec::with_capacity(USUAL_FILE);
    // Without it there are still the others.
    if let Ok(file) = fs::File::open("/etc/passwd") {
        drop(file.take(MAX_FILE).read_to_end(&mut passwd));
    }
    let named = named(&String::from_utf8_lossy(&passwd));
    // Not `home_dir`, which asks the C library where nobody says: that loads whatever the system's name service
    // names.
    let own = std::env::var_os("HOME").map(PathBuf::from);
    Homes::of(named.into_iter().chain(own.filter(|home| home.is_absolute())))
}

impl Homes {
    fn of(named: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut all = BTreeSet::from([PathBuf::from(ROOTS)]);
        for home in named {
            all.extend(home.canonicalize().ok());
            all.insert(home);
        }
        Self(all)
    }

    /// Whether a folder is somebody's home.
    pub(crate) fn is_home(&self, folder: &Path) -> bool {
        let is_one = |folder: &Path| {
            self.0.contains(folder) || folder.parent() == Some(Path::new(AROUND_HOMES))
        };
        is_one(folder) || folder.canonicalize().is_ok_and(|folder| is_one(&folder))
    }

    /// Whether there is somebody's home in a folder, or it is one.
    pub(crate) fn has_home(&self, folder: &Path) -> bool {
        let holds = |folder: &Path| {
            Path::new(AROUND_HOMES).starts_with(folder)
                || self.0.iter().any(|home| home.starts_with(folder))
        };
        let real = folder.canonicalize();
        self.is_home(folder) || holds(folder) || real.is_ok_and(|folder| holds(&folder))
    }
}

/// The homes that a list of users names. Many of those who are no people have a folder of the system, or
/// none, for theirs.
fn named(passwd: &str) -> BTreeSet<PathBuf> {
    let home = |line: &str| line.split(':').nth(5).map(PathBuf::from);
    let is_place = |home: &PathBuf| home.is_absolute() && home != Path::new("/");
    passwd.lines().filter_map(home).filter(is_place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_homes_by_the_list_and_by_custom() {
        let passwd =
            "root:x:0:0::/root:/bin/sh\nann:x:7:7:Ann:/data/ann:/bin/sh\nbad\nb:x:1:1::/:\n";
        let homes = Homes::of(named(passwd));
        for home in ["/root", "/data/ann", "/home/anybody"] {
            assert!(homes.is_home(Path::new(home)), "{home}");
        }
        for other in ["/", "/home", "/data", "/data/ann/.local", "/home/anybody/go"] {
            assert!(!homes.is_home(Path::new(other)), "{other}");
        }
        for around in ["/", "/home", "/data", "/data/ann"] {
            assert!(homes.has_home(Path::new(around)), "{around}");
        }
        assert!(!homes.has_home(Path::new("/data/ann/bin")));
    }

    #[test]
    fn knows_a_home_by_its_other_name() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        fs::create_dir(top.join("real")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        let homes = Homes::of([top.join("link")]);
        assert!(homes.is_home(&top.join("real")) && homes.is_home(&top.join("link")));
        let homes = Homes::of([top.join("real")]);
        assert!(homes.is_home(&top.join("link")));
    }
}
