//! What a command said, collected within bounds.

use crate::session::process::{Exit, ProcessId};
use crate::session::usage::Usage;

/// How much of each stream is kept unless the caller says otherwise.
pub(crate) const DEFAULT_LIMIT: usize = 64 * 1024 * 1024;

/// What a command said, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The process; its whole output can be read again with [`Session::attach`](crate::Session::attach)
    /// while the session keeps its log.
    pub process: ProcessId,
    /// Standard output. If some of it was left out, the first and the last half of what was kept.
    pub stdout: Vec<u8>,
    /// Standard error, likewise.
    pub stderr: Vec<u8>,
    /// How many bytes were left out of the middle of standard output.
    pub stdout_omitted: u64,
    /// How many bytes were left out of the middle of standard error.
    pub stderr_omitted: u64,
    /// How many bytes were said after the session's log was full; nobody has them.
    pub lost: u64,
    /// How it ended.
    pub exit: Exit,
    /// What it used, with all that descended from it and ended before its end was told; missing where the session was
    /// started by a version that does not tell.
    pub usage: Option<Usage>,
}

impl Output {
    /// Whether anything the command said is missing here.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.stdout_omitted > 0 || self.stderr_omitted > 0 || self.lost > 0
    }
}

/// Keeps the beginning and the end of each stream.
#[derive(Debug)]
pub(crate) struct OutputCollector {
    stdout: HeadAndTail,
    stderr: HeadAndTail,
    lost: u64,
}

impl OutputCollector {
    pub(crate) fn new(limit: usize) -> Self {
        Self { stdout: HeadAndTail::new(limit), stderr: HeadAndTail::new(limit), lost: 0 }
    }

    pub(crate) fn stdout(&mut self, data: &[u8]) {
        self.stdout.add(data);
    }

    pub(crate) fn stderr(&mut self, data: &[u8]) {
        self.stderr.add(data);
    }

    pub(crate) fn lost(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    pub(crate) fn finish(self, process: ProcessId, exit: Exit, usage: Option<Usage>) -> Output {
        let (stdout, stdout_omitted) = self.stdout.finish();
        let (stderr, stderr_omitted) = self.stderr.finish();
        let lost = self.lost;
        Output { process, stdout, stderr, stdout_omitted, stderr_omitted, lost, exit, usage }
    }
}

/// The first half of the limit, and a ring with the last half.
#[derive(Debug)]
struct HeadAndTail {
    half: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Where in the ring the next byte goes once the ring is full.
    next: usize,
    omitted: u64,
}

impl HeadAndTail {
    fn new(limit: usize) -> Self {
        let half = limit.div_ceil(2);
        Self { half, head: Vec::new(), tail: Vec::new(), next: 0, omitted: 0 }
    }

    fn add(&mut self, data: &[u8]) {
        let (to_head, rest) = data.split_at(data.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(to_head);
        let (to_tail, mut rest) = rest.split_at(rest.len().min(self.half - self.tail.len()));
        self.tail.extend_from_slice(to_tail);
        if self.half == 0 {
            self.omitted += rest.len() as u64;
            return;
        }
        while !rest.is_empty() {
            let room = self.half - self.next;
            let (now, later) = rest.split_at(rest.len().min(room));
            if let Some(place) = self.tail.get_mut(self.next..self.next + now.len()) {
                place.copy_from_slice(now);
            }
            self.next = (self.next + now.len()) % self.half;
            self.omitted += now.len() as u64;
            rest = later;
        }
    }

    fn finish(mut self) -> (Vec<u8>, u64) {
        self.tail.rotate_left(self.next);
        self.head.append(&mut self.tail);
        (self.head, self.omitted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_beginning_and_the_end() {
        for limit in [0, 1, 2, 7, 10, 64] {
            for total in [0usize, 1, 5, 9, 10, 11, 23, 100, 1000] {
                for step in [1, 3, 17] {
                    let all: Vec<u8> =
                        (0..total).map(|byte| u8::try_from(byte % 251).unwrap()).collect();
                    let mut kept = HeadAndTail::new(limit);
                    all.chunks(step).for_each(|part| kept.add(part));
                    let (got, omitted) = kept.finish();
                    let half = limit.div_ceil(2);
                    let head = total.min(half);
                    let tail = (total - head).min(half);
                    let want = [&all[..head], &all[total - tail..]].concat();
                    assert_eq!(got, want, "limit {limit}, {total} in steps of {step}");
                    assert_eq!(omitted, (total - head - tail) as u64);
                }
            }
        }
    }
}
