//! What is mounted in a sandbox, as its kernel says.

use std::time::Duration;

use super::commands::run;
use crate::{Command, Result, Session};

/// How long it may take to read the list.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The longest list that is read.
const MAX_LIST: usize = 1 << 20;

/// Everything that is mounted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct MountTable(Vec<Mounted>);

/// Something that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) path: String,
    pub(super) read_only: bool,
    /// The type of its file system, such as `fuse.rclone`.
    pub(super) kind: String,
}

impl MountTable {
    /// Asks the sandbox. Whoever is root there could answer anything, and would fool only itself.
    pub(super) async fn read(session: &Session) -> Result<Self> {
        let list = Command::new(["cat", "/proc/self/mountinfo"]).output_limit(MAX_LIST);
        let output = run(session, list, TIMEOUT).await?;
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// What is seen at a path: the last that was mounted there.
    pub(super) fn at(&self, path: &str) -> Option<&Mounted> {
        self.0.iter().rev().find(|mounted| mounted.path == path)
    }
}

/// One line of `/proc/PID/mountinfo` (proc(5)).
fn parse_line(line: &str) -> Option<Mounted> {
    let (own, rest) = line.split_once(" - ")?;
    let mut own = own.split(' ');
    let path = unescaped(own.nth(4)?);
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    let own_read_only = read_only(own.next()?);
    let mut rest = rest.split(' ');
    let kind = rest.next()?.to_owned();
    let whole_read_only = rest.nth(1).is_some_and(read_only);
    Some(Mounted { path, read_only: own_read_only || whole_read_only, kind })
}

/// Blanks and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_mounted_last_at_a_path() {
        let table = MountTable::parse(
            "21 1 0:20 / /workspace rw,relatime shared:1 - overlay overlay rw\n\
             30 21 0:40 / /workspace/a\\040b rw,nosuid - fuse.rclone r:b ro,user_id=0\n\
             31 21 0:41 / /workspace/a\\040b rw - fuse.mount-s3 mountpoint-s3 rw\n\
             nonsense\n",
        );
        let found = table.at("/workspace/a b").unwrap();
        assert_eq!((found.kind.as_str(), found.read_only), ("fuse.mount-s3", false));
        assert!(table.0[1].read_only, "what the file system refuses is refused");
        assert_eq!(table.at("/workspace/a"), None);
    }
}
