//! The users and groups of the sandbox, read by ourselves.
//!
//! The C library would load modules of the sandbox's image into this process to answer the same
//! questions. The two files are the sandbox's own, so they are read with care: at most so much of
//! them, never a pipe or a device, and a line that makes no sense is passed over.

mod edit;

use std::io;
use std::os::fd::OwnedFd;

use bastide_proto::files::MAX_ACCOUNT_NAME;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

pub(crate) use edit::add;

/// How much of a file is read.
const MAX_FILE: usize = 1 << 20;

/// How many groups one user is taken to be in; some kernels take no more.
const MAX_GROUPS: usize = 64;

/// Who somebody is to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The other groups.
    pub(crate) groups: Vec<u32>,
}

/// Which group a number is in that no user has for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnnamedGroup {
    /// The one of the same number.
    InOwnGroup,
    /// Root's, as with container engines.
    InRootsGroup,
}

/// Users and groups by number and name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Accounts {
    users: Vec<(String, u32)>,
    groups: Vec<(String, u32)>,
    /// The group each user of `users` belongs to before all others.
    own_groups: Vec<Option<u32>>,
    /// The home of each user of `users`.
    homes: Vec<Option<String>>,
    /// Whom each group of `groups` names.
    members: Vec<Vec<String>>,
}

impl Accounts {
    /// Reads the accounts of the sandbox. What cannot be read has no names in it.
    pub(crate) fn read() -> Self {
        let text = |path: &str| read(path).unwrap_or_default();
        Self::parse(&text("/etc/passwd"), &text("/etc/group"))
    }

    fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
        let names = |field: &[u8]| {
            let names =
                field.split(|byte| *byte == b',').filter_map(|name| str::from_utf8(name).ok());
            names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
        };
        let home = |field: &[u8]| {
            let home = str::from_utf8(field).ok().filter(|home| home.starts_with('/'));
            home.filter(|home| !home.contains('\0')).map(str::to_owned)
        };
        let mut accounts = Self::default();
        for (name, id, rest) in parse(passwd) {
            accounts.users.push((name, id));
            accounts.own_groups.push(rest.first().and_then(|field| number(field)));
            accounts.homes.push(rest.get(2).and_then(|field| home(field)));
        }
        for (name, id, rest) in parse(group) {
            accounts.groups.push((name, id));
            accounts.members.push(rest.first().map(|field| names(field)).unwrap_or_default());
        }
        accounts
    }

    /// Who is meant by `user`, `user:group`, `user:` or `:group`, each a name or a number. As with
    /// engines, whoever names a group means that one alone, and whoever names no user means root.
    pub(crate) fn identity(&self, text: &str, unnamed_group: UnnamedGroup) -> Option<Identity> {
        let (user, group) = match text.split_once(':') {
            Some(("", "")) => return None,
            Some(("", group)) => ("0", group),
            Some(parts) => parts,
            None => (text, ""),
        };
        let who = self.user_identity(user)?;
        match (group, unnamed_group) {
            ("", UnnamedGroup::InRootsGroup) if self.user_name(who.uid).is_none() => {
                Some(Identity { gid: 0, ..who })
            }
            ("", _) => Some(who),
            (group, _) => {
                Some(Identity { gid: self.group(group)?, groups: Vec::new(), uid: who.uid })
            }
        }
    }

    /// Who a user is that is given by name or number. A number without a name is a user like any
    /// other, in a group of the same number, and in none besides.
    fn user_identity(&self, text: &str) -> Option<Identity> {
        let uid = self.user(text)?;
        let at = self.users.iter().position(|(name, id)| *id == uid && name == text);
        let at = at.or_else(|| self.users.iter().position(|(_, id)| *id == uid));
        let Some(at) = at else { return Some(Identity { uid, gid: uid, groups: Vec::new() }) };
        let gid = self.own_groups.get(at).copied().flatten().unwrap_or(uid);
        let name = &self.users[at].0;
        let is_in = |members: &Vec<String>| members.iter().any(|member| member == name);
        let named = self.groups.iter().zip(&self.members).filter(|(_, members)| is_in(members));
        let mut groups: Vec<u32> = named.map(|((_, id), _)| *id).filter(|id| *id != gid).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.truncate(MAX_GROUPS);
        Some(Identity { uid, gid, groups })
    }

    /// The home of a user; the top of all files for one that has none.
    pub(crate) fn home(&self, uid: u32) -> &str {
        let at = self.users.iter().position(|(_, id)| *id == uid);
        let home = at.and_then(|at| self.homes.get(at)).and_then(Option::as_deref);
        home.unwrap_or("/")
    }

    /// The name of a user.
    pub(crate) fn user_name(&self, uid: u32) -> Option<&str> {
        name_of(&self.users, uid)
    }

    /// The name of a group.
    pub(crate) fn group_name(&self, gid: u32) -> Option<&str> {
        name_of(&self.groups, gid)
    }

    /// The number of a user that is given by name or number.
    pub(crate) fn user(&self, text: &str) -> Option<u32> {
        number_of(&self.users, text)
    }

    /// The number of a group that is given by name or number.
    pub(crate) fn group(&self, text: &str) -> Option<u32> {
        number_of(&self.groups, text)
    }
}

fn name_of(list: &[(String, u32)], id: u32) -> Option<&str> {
    list.iter().find(|(_, other)| *other == id).map(|(name, _)| name.as_str())
}

fn number_of(list: &[(String, u32)], text: &str) -> Option<u32> {
    let named = list.iter().find(|(name, _)| name == text).map(|(_, id)| *id);
    // The highest number means "nobody in particular" to the kernel.
    named.or_else(|| text.parse().ok().filter(|id| *id != u32::MAX))
}

/// Both files have the name first and the number third; the fields after that come along.
fn parse(text: &[u8]) -> impl Iterator<Item = (String, u32, Vec<&[u8]>)> {
    let entry = |line| -> Option<(String, u32, Vec<&[u8]>)> {
        let mut fields = <[u8]>::split(line, |byte| *byte == b':');
        let name = std::str::from_utf8(fields.next()?).ok()?;
        let id = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
        // The highest number means "nobody in particular" to the kernel.
        let fits = !name.is_empty() && name.len() <= MAX_ACCOUNT_NAME && !name.starts_with('#');
        let fits = fits && id != u32::MAX;
        fits.then(|| (name.to_owned(), id, fields.collect()))
    };
    text.split(|byte| *byte == b'\n').filter_map(entry)
}

/// Reads one of both files, as far as it is read at all.
pub(crate) fn read(path: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = vec![0; MAX_FILE];
    let mut length = 0;
    while length < text.len() {
        match rustix::io::read(&file, &mut text[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    text.truncate(length);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_lines_that_make_no_sense() {
        let long = format!("{}:x:7::\n", "n".repeat(MAX_ACCOUNT_NAME + 1));
        let text = [
            &b"root:x:0:0:root:/root:/bin/sh\n# c:x:1:\n:x:2:\nbad\n\xff:x:3:\na:x:-1:\n"[..],
            b"b:x:4294967296:\n+::::\nagent:x:1000:1000\n",
            long.as_bytes(),
        ]
        .concat();
        let want = [("root".to_owned(), 0), ("agent".to_owned(), 1000)];
        assert_eq!(Accounts::parse(&text, &[]).users, want);
    }

    #[test]
    fn takes_names_and_numbers() {
        let users = vec![("root".to_owned(), 0), ("7".to_owned(), 8)];
        let accounts = Accounts { users, ..Accounts::default() };
        let cases = [("root", Some(0)), ("12", Some(12)), ("7", Some(8)), ("nobody", None)];
        for (text, want) in cases {
            assert_eq!(accounts.user(text), want, "{text}");
        }
        assert_eq!(accounts.user("4294967295"), None);
        assert_eq!((accounts.user_name(0), accounts.user_name(1)), (Some("root"), None));
    }

    #[test]
    fn knows_the_groups_of_a_user() {
        let passwd = b"root:x:0:0\nann:x:1000:100::\nbob:x:1001:bad\nann2:x:1000:7\n";
        let group =
            b"root:x:0:\nwheel:x:10:bob,ann\nusers:x:100:ann\nx:x:11:\xff,,ann\ny:x:10:ann\n";
        let accounts = Accounts::parse(passwd, group);
        let who = |uid, gid, groups: &[u32]| Some(Identity { uid, gid, groups: groups.to_vec() });
        let cases = [
            ("root", who(0, 0, &[])),
            ("ann", who(1000, 100, &[10, 11])),
            ("1000", who(1000, 100, &[10, 11])),
            ("ann2", who(1000, 7, &[])),
            ("bob", who(1001, 1001, &[10])),
            ("4242", who(4242, 4242, &[])),
            ("eve", None),
            ("-1", None),
        ];
        for (text, want) in cases {
            assert_eq!(accounts.identity(text, UnnamedGroup::InOwnGroup), want, "{text}");
        }
        let unnamed_group = accounts.identity("4242", UnnamedGroup::InRootsGroup);
        assert_eq!(unnamed_group, who(4242, 0, &[]), "as with engines");
    }

    #[test]
    fn knows_users_by_their_group() {
        let passwd = b"root:x:0:0\nann:x:1000:100::\n";
        let group = b"root:x:0:\nwheel:x:10:ann\n";
        let accounts = Accounts::parse(passwd, group);
        let who = |uid, gid, groups: &[u32]| Some(Identity { uid, gid, groups: groups.to_vec() });
        let cases = [
            ("ann:wheel", who(1000, 10, &[])),
            ("1000:10", who(1000, 10, &[])),
            ("4242:77", who(4242, 77, &[])),
            ("ann:", who(1000, 100, &[10])),
            (":wheel", who(0, 10, &[])),
            (":", None),
            ("ann:nosuch", None),
            ("ann:wheel:", None),
            ("nosuch:wheel", None),
            ("ann:4294967295", None),
        ];
        for (text, want) in cases {
            assert_eq!(accounts.identity(text, UnnamedGroup::InRootsGroup), want, "{text}");
        }
    }

    #[test]
    fn knows_homes() {
        let passwd = b"root:x:0:0:root:/root:/bin/sh\nann:x:1:1::/home/ann\nbob:x:2:2:::\n\
                       eve:x:3:3::not/absolute:\nzoe:x:4:4::/a\0b:\nann2:x:1:1::/other:\n";
        let accounts = Accounts::parse(passwd, b"");
        let homes = [(0, "/root"), (1, "/home/ann"), (2, "/"), (3, "/"), (4, "/"), (9, "/")];
        for (uid, home) in homes {
            assert_eq!(accounts.home(uid), home, "{uid}");
        }
    }
}
