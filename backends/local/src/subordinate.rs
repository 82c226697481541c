//! Ranges of ids that a machine sets aside for its users, and the two programs that give them.

use std::fs;
use std::path::{Path, PathBuf};

use bastide_proto::boot::{IdExtent, Ids, UserAndGroup};

/// How many ids a session gets: all that programs expect to exist.
const RANGE: u32 = 65_536;

/// Where the programs are; whatever else is searched is the caller's own.
const FOLDERS: [&str; 3] = ["/usr/bin", "/bin", "/usr/local/bin"];

/// The most that is read of a file.
const MAX_FILE: u64 = 1 << 20;

/// What the machine gives one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subordinate {
    users: (u32, u32),
    groups: (u32, u32),
    newuidmap: PathBuf,
    newgidmap: PathBuf,
}

impl Subordinate {
    /// What is set aside for the caller, or why that is nothing and what would change it.
    pub(crate) fn find(caller: UserAndGroup) -> Result<Self, String> {
        let name = name_of(&read("/etc/passwd"), caller.uid);
        let by = name.clone().unwrap_or_else(|| caller.uid.to_string());
        let program = |name: &str| {
            let found = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
            found.into_iter().find(|path| path.exists()).ok_or_else(|| {
                format!("{name} is missing; `sudo apt-get install uidmap` brings it")
            })
        };
        let range = |file: &str, kind: &str| {
            range_of(&read(file), caller.uid, name.as_deref()).ok_or_else(|| {
                format!(
                    "{file} sets no range of ids aside for {by}; `sudo usermod --add-sub{kind}s \
                     100000-165535 {by}` does"
                )
            })
        };
        Ok(Self {
            newuidmap: program("newuidmap")?,
            newgidmap: program("newgidmap")?,
            users: range("/etc/subuid", "uid")?,
            groups: range("/etc/subgid", "gid")?,
        })
    }

    /// The caller as `inside`, and everybody else out of the range.
    pub(crate) fn around(self, caller: UserAndGroup, inside: UserAndGroup) -> Ids {
        Ids::Subordinate {
            users: extents(inside.uid, caller.uid, self.users),
            groups: extents(inside.gid, caller.gid, self.groups),
            newuidmap: self.newuidmap,
            newgidmap: self.newgidmap,
        }
    }
}

fn read(path: &str) -> String {
    use std::io::Read;
    let mut text = Vec::new();
    // What cannot be read names nobody.
    if let Ok(file) = fs::File::open(path) {
        drop(file.take(MAX_FILE).read_to_end(&mut text));
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn name_of(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The first range of a user that is large enough and has no root in it.
fn range_of(text: &str, uid: u32, name: Option<&str>) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let whose = fields.next()?;
        let first: u32 = fields.next()?.parse().ok()?;
        let count: u32 = fields.next()?.parse().ok()?;
        let is_his = Some(whose) == name || whose.parse() == Ok(uid);
        let fits = first > 0 && count >= RANGE && first.checked_add(count).is_some();
        (is_his && fits).then_some((first, RANGE))
    })
}

/// The ids from 0 up out of the range, but the caller where it is inside.
fn extents(inside: u32, caller: u32, (first, count): (u32, u32)) -> Vec<IdExtent> {
    let own = IdExtent { inside, outside: caller, count: 1 };
    if inside >= count {
        return vec![IdExtent { inside: 0, outside: first, count }, own];
    }
    let below = IdExtent { inside: 0, outside: first, count: inside };
    let above = IdExtent { inside: inside + 1, outside: first + inside, count: count - inside - 1 };
    [below, own, above].into_iter().filter(|extent| extent.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_range_of_a_user_by_name_and_number() {
        let text =
            "root:0:65536\nann:100:10\nann:100000:65536\n1002:200000:70000\nbad\nbob:0:99999\n";
        let cases = [
            (1001, Some("ann"), Some((100_000, RANGE))),
            (1002, None, Some((200_000, RANGE))),
            (1003, Some("bob"), None),
            (1004, Some("eve"), None),
        ];
        for (uid, name, want) in cases {
            assert_eq!(range_of(text, uid, name), want, "{uid}");
        }
    }

    #[test]
    fn maps_the_caller_alone_to_the_caller_and_nobody_to_root() {
        for inside in [0, 1, 1000, RANGE - 1, RANGE, 4_000_000] {
            let extents = extents(inside, 1000, (100_000, RANGE));
            let mut seen = Vec::new();
            for extent in &extents {
                let last = extent.outside + (extent.count - 1);
                assert!(extent.outside > 0 && (extent.inside == inside || last < 165_536));
                seen.push((extent.inside, extent.count));
            }
            let own: Vec<_> = extents.iter().filter(|extent| extent.outside == 1000).collect();
            assert_eq!(own, [&IdExtent { inside, outside: 1000, count: 1 }]);
            seen.sort_unstable();
            for pair in seen.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{seen:?} overlap");
            }
        }
    }
}
