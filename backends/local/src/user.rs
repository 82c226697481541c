//! Who commands are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bastide_proto::boot::{FIRST_RANGE_ID, Ids, UserAndGroup};

use crate::subordinate::Subordinate;

/// Where root's sessions keep out of each other's ranges of ids.
pub(crate) const ID_LOCKS: &str = "/run/bastide/id-ranges";

/// Who a caller is inside that is root only by name, as in a container without privileges.
const ORDINARY: UserAndGroup = UserAndGroup { uid: 1000, gid: 1000 };

/// Who commands are inside, by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: &'static str,
    pub(crate) inside: UserAndGroup,
    pub(crate) ids: Ids,
    /// Why there are no other users inside, where there are none.
    pub(crate) single_user_reason: Option<String>,
}

impl Identity {
    /// Root's commands are root inside, over ids of their own; a user's are that user. Nobody is ever
    /// the host's root.
    pub(crate) fn of_caller() -> io::Result<Self> {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let map = fs::read_to_string("/proc/self/uid_map")?;
        let caller = UserAndGroup { uid, gid };
        let who = Self::choose(caller, &map);
        Ok(match (&who.ids, Subordinate::find(caller)) {
            (Ids::Range { .. }, _) => who,
            (_, Ok(range)) => {
                Self { ids: range.around(caller, who.inside), single_user_reason: None, ..who }
            }
            (_, Err(why)) => Self { single_user_reason: Some(why), ..who },
        })
    }

    /// The same without a range that could not be had after all.
    pub(crate) fn without_range(self, why: &str) -> Self {
        let outside = UserAndGroup {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let single_user_reason =
            Some(format!("the range of ids set aside for this user is of no use: {why}"));
        Self { ids: Ids::Own { outside, inside: self.inside }, single_user_reason, ..self }
    }

    /// The same where commands can write to folders of the host, the first of which is `folder`. One user is
    /// inside, who is each folder's owner there: nobody else's files can be left behind.
    pub(crate) fn over_host_folder(self, folder: &Path) -> Self {
        let single_user_reason = Some(only_owner(folder));
        match self.ids {
            Ids::Range { locks, .. } => {
                let ids = Ids::Range { locks, only: Some(ORDINARY) };
                Self { name: "agent", inside: ORDINARY, ids, single_user_reason }
            }
            Ids::Subordinate { .. } => {
                let outside = UserAndGroup {
                    uid: rustix::process::geteuid().as_raw(),
                    gid: rustix::process::getegid().as_raw(),
                };
                Self { ids: Ids::Own { outside, inside: self.inside }, single_user_reason, ..self }
            }
            Ids::Own { .. } | Ids::Host(_) => Self { single_user_reason, ..self },
        }
    }

    /// Whether the caller is root, and not somebody else who is called so in a user namespace.
    pub(crate) fn is_hosts_root() -> io::Result<bool> {
        let is_root = rustix::process::geteuid().is_root();
        Ok(is_root && maps_root(&fs::read_to_string("/proc/self/uid_map")?))
    }

    /// Whether ids of root's ranges exist here.
    pub(crate) fn has_ranges() -> io::Result<bool> {
        Ok(has_ranges(&fs::read_to_string("/proc/self/uid_map")?))
    }

    fn choose(caller: UserAndGroup, uid_map: &str) -> Self {
        let root = UserAndGroup { uid: 0, gid: 0 };
        if caller.uid == 0 && has_ranges(uid_map) {
            let ids = Ids::Range { locks: PathBuf::from(ID_LOCKS), only: None };
            return Self { name: "root", inside: root, ids, single_user_reason: None };
        }
        let inside = if caller.uid == 0 || caller.gid == 0 { ORDINARY } else { caller };
        let ids = Ids::Own { outside: caller, inside };
        Self { name: "agent", inside, ids, single_user_reason: None }
    }
}

/// Why there is nobody but one user over a folder of the host, and what helps.
pub(crate) fn only_owner(folder: &Path) -> String {
    format!(
        "what this session leaves in {} has to be its owner's, so `agent` is the only user there; use a \
         workspace of the session's own, or grant the folder read-only",
        folder.display()
    )
}

/// Whether root here is root around this user namespace. Where that cannot be read off, it is.
fn maps_root(uid_map: &str) -> bool {
    let outside_of_root = uid_map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(0)), Some(Ok(outside))) => Some(outside),
            _ => None,
        }
    });
    outside_of_root.is_none_or(|outside| outside == 0)
}

/// Whether the ids that sessions of root take exist here: in a user namespace they may not.
fn has_ranges(uid_map: &str) -> bool {
    uid_map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return false;
        };
        first == 0 && count > u64::from(FIRST_RANGE_ID)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_one_user_over_a_folder_of_the_host() {
        let caller = UserAndGroup { uid: 0, gid: 0 };
        let who = Identity::choose(caller, "0 0 4294967295\n").over_host_folder(Path::new("/ws"));
        assert_eq!((who.name, who.inside), ("agent", ORDINARY));
        assert!(matches!(who.ids, Ids::Range { only: Some(ORDINARY), .. }), "{:?}", who.ids);
        assert!(who.single_user_reason.is_some_and(|why| why.contains("/ws")));
        let range = Ids::Subordinate {
            users: Vec::new(),
            groups: Vec::new(),
            newuidmap: PathBuf::new(),
            newgidmap: PathBuf::new(),
        };
        let who =
            Identity { name: "agent", inside: ORDINARY, ids: range, single_user_reason: None };
        let ids = who.over_host_folder(Path::new("/ws")).ids;
        assert!(matches!(ids, Ids::Own { inside: ORDINARY, .. }), "{ids:?}");
    }

    #[test]
    fn tells_root_from_somebody_who_is_called_so() {
        for map in ["0 0 4294967295\n", "0 0 1\n", "", "1000 1000 1\n"] {
            assert!(maps_root(map), "{map:?}");
        }
        for map in ["0 1000 1\n1 100000 65536\n", "         0      57411          1\n"] {
            assert!(!maps_root(map), "{map:?}");
        }
    }

    #[test]
    fn never_maps_the_hosts_root() {
        let everything = "         0          0 4294967295\n";
        let nested = "         0       1001          1\n";
        let id = |uid, gid| UserAndGroup { uid, gid };
        let cases = [
            (id(0, 0), everything, "root", id(0, 0)),
            (id(1001, 1001), everything, "agent", id(1001, 1001)),
            (id(0, 0), nested, "agent", ORDINARY),
            (id(1001, 0), everything, "agent", ORDINARY),
        ];
        for (caller, map, name, inside) in cases {
            let got = Identity::choose(caller, map);
            assert_eq!((got.name, got.inside), (name, inside), "{caller:?} in {map:?}");
        }
    }
}
