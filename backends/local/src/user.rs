//! Who commands are.

use std::fs;
use std::io;
use std::path::PathBuf;

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
    pub(crate) only_own: Option<String>,
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
            (_, Ok(range)) => Self { ids: range.around(caller, who.inside), only_own: None, ..who },
            (_, Err(why)) => Self { only_own: Some(why), ..who },
        })
    }

    /// The same without a range that could not be had after all.
    pub(crate) fn without_range(self, why: &str) -> Self {
        let outside = UserAndGroup {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let only_own =
            Some(format!("the range of ids set aside for this user is of no use: {why}"));
        Self { ids: Ids::Own { outside, inside: self.inside }, only_own, ..self }
    }

    /// Whether ids of root's ranges exist here.
    pub(crate) fn has_ranges() -> bool {
        fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| has_ranges(&map))
    }

    fn choose(caller: UserAndGroup, uid_map: &str) -> Self {
        let root = UserAndGroup { uid: 0, gid: 0 };
        if caller.uid == 0 && has_ranges(uid_map) {
            let ids = Ids::Range { locks: PathBuf::from(ID_LOCKS) };
            return Self { name: "root", inside: root, ids, only_own: None };
        }
        let inside = if caller.uid == 0 || caller.gid == 0 { ORDINARY } else { caller };
        let ids = Ids::Own { outside: caller, inside };
        Self { name: "agent", inside, ids, only_own: None }
    }
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
