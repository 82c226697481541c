//! How many processes of the session the OOM killer ended.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// The kernel's count of OOM kills, where there is one.
#[derive(Debug)]
pub(crate) struct OomCounter(Option<File>);

impl OomCounter {
    pub(crate) fn new(book: Option<OwnedFd>) -> Self {
        Self(book.map(File::from))
    }

    /// How many processes were killed so far.
    pub(crate) fn oom_kills(&self) -> u64 {
        let mut text = [0; 4096];
        let read = self.0.as_ref().map(|book| book.read_at(&mut text, 0));
        let Some(Ok(length)) = read else { return 0 };
        count(&String::from_utf8_lossy(text.get(..length).unwrap_or_default()))
    }
}

fn count(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_books_of_both_versions() {
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(count("low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(count(""), 0);
    }
}
