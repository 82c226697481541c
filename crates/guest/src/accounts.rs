//! The users and groups of the sandbox, read by ourselves.
//!
//! The C library would load modules of the sandbox's image into this process to answer the same
//! questions. The two files are the sandbox's own, so they are read with care: at most so much of
//! them, never a pipe or a device, and a line that makes no sense is passed over.

use std::io;
use std::os::fd::OwnedFd;

use bastide_proto::files::MAX_ACCOUNT_NAME;
use rustix::fs::{FileType, Mode, OFlags};

/// How much of a file is read.
const MAX_FILE: usize = 1 << 20;

/// In how many groups a user may be.
const MAX_GROUPS: usize = 1024;

/// Users and groups by number and name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Accounts {
    users: Vec<(String, u32)>,
    groups: Vec<(String, u32)>,
    /// The first group of each user.
    first_groups: Vec<(u32, u32)>,
    /// Who is in which group besides.
    members: Vec<(String, u32)>,
}

impl Accounts {
    /// Reads the accounts of the sandbox. What cannot be read has no names in it.
    pub(crate) fn read() -> Self {
        let text = |path: &str| read(path).unwrap_or_default();
        let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
        Self {
            users: parse(&passwd),
            groups: parse(&group),
            first_groups: first_groups(&passwd),
            members: members(&group),
        }
    }

    /// The first group of a user.
    pub(crate) fn first_group(&self, uid: u32) -> Option<u32> {
        self.first_groups.iter().find(|(user, _)| *user == uid).map(|(_, group)| *group)
    }

    /// The groups a user is in besides.
    pub(crate) fn groups_of(&self, name: &str) -> Vec<u32> {
        let ours = self.members.iter().filter(|(member, _)| member == name);
        ours.map(|(_, group)| *group).take(MAX_GROUPS).collect()
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

/// Both files have the name first and the number third.
fn parse(text: &[u8]) -> Vec<(String, u32)> {
    let entry = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = std::str::from_utf8(fields.next()?).ok()?;
        let id = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
        let fits = !name.is_empty() && name.len() <= MAX_ACCOUNT_NAME && !name.starts_with('#');
        fits.then(|| (name.to_owned(), id))
    };
    text.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

/// A field of a line, as text.
fn field(line: &[u8], number: usize) -> Option<&str> {
    std::str::from_utf8(line.split(|byte| *byte == b':').nth(number)?).ok()
}

fn first_groups(passwd: &[u8]) -> Vec<(u32, u32)> {
    let entry = |line| Some((field(line, 2)?.parse().ok()?, field(line, 3)?.parse().ok()?));
    passwd.split(|byte| *byte == b'\n').filter_map(entry).collect()
}

fn members(group: &[u8]) -> Vec<(String, u32)> {
    let lines = group.split(|byte| *byte == b'\n');
    let entry = |line| Some((field(line, 3)?, field(line, 2)?.parse::<u32>().ok()?));
    let all = lines.filter_map(entry).flat_map(|(names, id)| {
        let names = names.split(',').filter(|name| !name.is_empty());
        names.map(move |name| (name.to_owned(), id))
    });
    all.collect()
}

fn read(path: &str) -> io::Result<Vec<u8>> {
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
        assert_eq!(parse(&text), [("root".to_owned(), 0), ("agent".to_owned(), 1000)]);
    }

    #[test]
    fn knows_the_groups_of_a_user() {
        let passwd = b"root:x:0:0::/:\napp:x:1000:1001::/:\nbad:x:7:x::/:\n";
        let group = b"a:x:5:app,root\nb:x:6:\nc:x:7:app\nd:x:no:app\n";
        let accounts = Accounts {
            first_groups: first_groups(passwd),
            members: members(group),
            ..Accounts::default()
        };
        assert_eq!((accounts.first_group(1000), accounts.first_group(7)), (Some(1001), None));
        assert_eq!(accounts.groups_of("app"), [5, 7]);
        assert_eq!(accounts.groups_of("nobody"), [0; 0]);
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
}
