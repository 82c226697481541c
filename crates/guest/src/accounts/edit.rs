//! Adding users and groups to the sandbox's own files, without the programs that do it elsewhere.

use std::collections::BTreeSet;

use bastide_proto::accounts::{Accounts as RequestedAccounts, MAX_ACCOUNTS};

/// The longest name of an account that is made.
const MAX_NAME: usize = 32;

/// The numbers new accounts get: above those of the system, below `nobody`.
const NUMBERS: std::ops::Range<u32> = 1000..60_000;

/// Both files with the wanted accounts in them, or why they cannot have them.
pub(crate) fn add(
    passwd: &[u8],
    group: &[u8],
    wanted: &RequestedAccounts,
) -> Result<(Vec<u8>, Vec<u8>), String> {
    let members = wanted.groups.iter().flat_map(|(_, members)| members);
    let users: BTreeSet<&str> = wanted.users.iter().chain(members).map(String::as_str).collect();
    if users.len() > MAX_ACCOUNTS || wanted.groups.len() > MAX_ACCOUNTS {
        return Err(format!("more than {MAX_ACCOUNTS} accounts at once"));
    }
    let groups = wanted.groups.iter().map(|(name, _)| name.as_str());
    for name in groups.chain(users.iter().copied()) {
        if !is_name(name) {
            return Err(format!("{name:?} is no name for an account"));
        }
    }
    let (mut passwd, mut group) = (Table::new(passwd), Table::new(group));
    for (name, _) in &wanted.groups {
        if !group.has(name) {
            let gid = free(&[&group]).ok_or("there are no more numbers for groups")?;
            group.lines.push(format!("{name}:x:{gid}:").into_bytes());
        }
    }
    for name in users {
        if passwd.has(name) {
            continue;
        }
        // A private group has the user's number, where that is free in both.
        let (uid, gid) = match group.number(name) {
            Some(gid) => (free(&[&passwd]), gid),
            None => {
                let id = free(&[&passwd, &group]);
                let gid = id.ok_or("there are no more numbers for groups")?;
                group.lines.push(format!("{name}:x:{gid}:").into_bytes());
                (id, gid)
            }
        };
        let uid = uid.ok_or("there are no more numbers for users")?;
        // As `useradd -M` does: a home by name, which nobody makes.
        let line = format!("{name}:x:{uid}:{gid}::/home/{name}:/usr/sbin/nologin");
        passwd.lines.push(line.into_bytes());
    }
    for (name, members) in &wanted.groups {
        for member in members {
            group.join(name, member);
        }
    }
    Ok((passwd.text(), group.text()))
}

/// What login programs take for a name; nothing that means something else in these files.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let first = name.bytes().next();
    name.len() <= MAX_NAME
        && first.is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && name.bytes().all(is_plain)
}

/// The first number that is in none of the tables.
fn free(tables: &[&Table]) -> Option<u32> {
    let taken: BTreeSet<u32> = tables.iter().flat_map(|table| table.numbers()).collect();
    NUMBERS.into_iter().find(|number| !taken.contains(number))
}

/// One of both files, line by line; what makes no sense stays as it is.
struct Table {
    lines: Vec<Vec<u8>>,
}

impl Table {
    fn new(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Self { lines: lines.map(<[u8]>::to_vec).collect() }
    }

    fn field(line: &[u8], index: usize) -> Option<&[u8]> {
        line.split(|byte| *byte == b':').nth(index)
    }

    fn line_of(&self, name: &str) -> Option<usize> {
        self.lines.iter().position(|line| Self::field(line, 0) == Some(name.as_bytes()))
    }

    fn has(&self, name: &str) -> bool {
        self.line_of(name).is_some()
    }

    fn number_in(line: &[u8]) -> Option<u32> {
        std::str::from_utf8(Self::field(line, 2)?).ok()?.parse().ok()
    }

    fn number(&self, name: &str) -> Option<u32> {
        Self::number_in(self.lines.get(self.line_of(name)?)?)
    }

    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().filter_map(|line| Self::number_in(line))
    }

    /// Puts a user into a group.
    fn join(&mut self, group: &str, user: &str) {
        let Some(line) = self.line_of(group).and_then(|at| self.lines.get_mut(at)) else { return };
        let members = Self::field(line, 3).unwrap_or_default();
        if members.split(|byte| *byte == b',').any(|member| member == user.as_bytes()) {
            return;
        }
        if !members.is_empty() {
            line.push(b',');
        }
        line.extend_from_slice(user.as_bytes());
    }

    fn text(&self) -> Vec<u8> {
        self.lines.iter().flat_map(|line| [line.as_slice(), b"\n"].concat()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(users: &[&str], groups: &[(&str, &[&str])]) -> RequestedAccounts {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let groups = groups.iter().map(|(name, members)| ((*name).to_owned(), names(members)));
        RequestedAccounts { users: names(users), groups: groups.collect() }
    }

    const PASSWD: &str = "agent:x:1000:1000::/w:/bin/sh\nodd\n";
    const GROUP: &str = "agent:x:1000:\nold:x:1001:amy\n";

    #[test]
    fn adds_groups_users_and_members_once() {
        let wanted =
            wanted(&["zoe", "amy"], &[("team", &["zoe", "agent"]), ("old", &["amy", "zoe"])]);
        let (passwd, group) = add(PASSWD.as_bytes(), GROUP.as_bytes(), &wanted).unwrap();
        let shown = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        assert_eq!(
            shown(&passwd),
            "agent:x:1000:1000::/w:/bin/sh\nodd\namy:x:1003:1003::/home/amy:/usr/sbin/nologin\n\
             zoe:x:1004:1004::/home/zoe:/usr/sbin/nologin\n"
        );
        assert_eq!(
            shown(&group),
            "agent:x:1000:\nold:x:1001:amy,zoe\nteam:x:1002:zoe,agent\namy:x:1003:\nzoe:x:1004:\n"
        );
        assert_eq!(
            add(&passwd, &group, &wanted).unwrap(),
            (passwd, group),
            "twice is as good as once"
        );
    }

    #[test]
    fn a_user_with_the_name_of_a_group_is_in_that_group() {
        let (passwd, group) = add(b"", b"", &wanted(&["team"], &[("team", &[])])).unwrap();
        assert_eq!(passwd, b"team:x:1000:1000::/home/team:/usr/sbin/nologin\n");
        assert_eq!(group, b"team:x:1000:\n");
    }

    #[test]
    fn takes_no_name_that_means_something_else() {
        let long = "n".repeat(MAX_NAME + 1);
        for bad in ["", "a:b", "a\nb", "-a", "a,b", "a/b", "7", "é", &long] {
            assert!(add(b"", b"", &wanted(&[bad], &[])).is_err(), "{bad:?}");
            assert!(add(b"", b"", &wanted(&[], &[(bad, &[])])).is_err(), "{bad:?}");
            assert!(add(b"", b"", &wanted(&[], &[("g", &[bad])])).is_err(), "{bad:?}");
        }
    }
}
