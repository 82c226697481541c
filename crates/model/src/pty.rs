//! The rules of interactive processes: how long a call waits for output, which process has to go
//! when there are too many, and what one call shows of the output.

use std::time::Duration;

use crate::truncation::formatted_truncate_text_with_token_count;

/// The shortest a call waits for output, in milliseconds.
pub const PTY_YIELD_TIME_MS_MIN: i64 = 250;
/// The shortest a call that writes nothing waits for output, in milliseconds.
pub const PTY_EMPTY_YIELD_TIME_MS_MIN: i64 = 5_000;
/// The longest a call waits for output, in milliseconds.
pub const PTY_YIELD_TIME_MS_MAX: i64 = 30_000;
/// How long starting a process waits unless told, in milliseconds.
pub const PTY_START_YIELD_TIME_MS: i64 = 10_000;
/// How long writing to a process waits unless told, in milliseconds.
pub const PTY_WRITE_YIELD_TIME_MS: i64 = 250;
/// How many processes a session holds before one has to go.
pub const PTY_PROCESSES_MAX: usize = 64;
/// From how many processes on a session warns.
pub const PTY_PROCESSES_WARNING: usize = 60;
/// How many of the most recently used processes are never pruned.
pub const PTY_PROCESSES_PROTECTED_RECENT: usize = 8;
/// The smallest id of a process.
pub const PTY_PROCESS_ID_MIN: i64 = 1_000;
/// The first number past the ids of processes.
pub const PTY_PROCESS_ID_MAX_EXCLUSIVE: i64 = 100_000;

/// Seconds as a caller gives them, in whole milliseconds.
#[must_use]
pub fn yield_time_ms(yield_time_s: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "the cast saturates and NaN becomes 0")]
    let milliseconds = (yield_time_s * 1000.0) as i64;
    milliseconds
}

/// How long starting a process may wait for output.
#[must_use]
pub fn clamp_pty_yield_time_ms(yield_time_ms: i64) -> i64 {
    yield_time_ms.clamp(PTY_YIELD_TIME_MS_MIN, PTY_YIELD_TIME_MS_MAX)
}

/// How long writing to a process may wait for output. A call that writes nothing only polls, and
/// waits longer so that polling in a loop does not burn turns.
#[must_use]
pub fn resolve_pty_write_yield_time_ms(yield_time_ms: i64, input: &str) -> i64 {
    let clamped = clamp_pty_yield_time_ms(yield_time_ms);
    if input.is_empty() { clamped.max(PTY_EMPTY_YIELD_TIME_MS_MIN) } else { clamped }
}

/// An unused id, starting the search at a place that `random` decides; `None` if all are in use.
///
/// ```
/// use bastide_model::pty::allocate_pty_process_id;
///
/// assert_eq!(allocate_pty_process_id(7, |id| id == 1007), Some(1008));
/// ```
pub fn allocate_pty_process_id(random: u64, in_use: impl Fn(i64) -> bool) -> Option<i64> {
    let count = PTY_PROCESS_ID_MAX_EXCLUSIVE - PTY_PROCESS_ID_MIN;
    let start = i64::try_from(random % count.unsigned_abs()).unwrap_or(0);
    (0..count)
        .map(|step| PTY_PROCESS_ID_MIN + (start + step) % count)
        .find(|process_id| !in_use(*process_id))
}

/// When a process was last used, for choosing which one has to go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PtyUse {
    /// The id of the process.
    pub process_id: i64,
    /// When a caller last used it, on any clock that only goes forward.
    pub last_used: f64,
    /// Whether it has ended.
    pub exited: bool,
}

/// The process to end when there are too many: the longest unused one that has ended, else the
/// longest unused one. The most recently used ones stay.
#[must_use]
pub fn process_id_to_prune(uses: &[PtyUse]) -> Option<i64> {
    let mut oldest_first = uses.to_vec();
    oldest_first.sort_by(|a, b| a.last_used.total_cmp(&b.last_used));
    let mut newest_first = uses.to_vec();
    // Sorted by itself, not reversed: of equally recent ones the first listed is protected.
    newest_first.sort_by(|a, b| b.last_used.total_cmp(&a.last_used));
    newest_first.truncate(PTY_PROCESSES_PROTECTED_RECENT);

    let mut candidates = oldest_first
        .iter()
        .filter(|pty| !newest_first.iter().any(|recent| recent.process_id == pty.process_id));
    let oldest = candidates.clone().next();
    candidates.find(|pty| pty.exited).or(oldest).map(|pty| pty.process_id)
}

/// What one call to an interactive process returns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PtyExecUpdate {
    /// The id to write to or poll next; `None` once the process is over.
    pub process_id: Option<i64>,
    /// What the process wrote since the last call, as UTF-8.
    pub output: Vec<u8>,
    /// Its exit code, once it is over; a signal is told as the reference's client of that backend does.
    pub exit_code: Option<i64>,
    /// How many tokens there were, if the output was cut.
    pub original_token_count: Option<i64>,
}

/// What one call shows of a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedOutput {
    /// Valid UTF-8, cut to the caller's budget.
    pub output: Vec<u8>,
    /// How many tokens there were, if the output was cut.
    pub original_token_count: Option<i64>,
    /// Whether no more output can come.
    pub output_closed: bool,
}

/// The output of one process that no call has shown yet.
///
/// The holder pushes what arrives and, for a call, waits as long as [`PtyOutput::wait`] says (or
/// until something arrives), then collects.
///
/// ```
/// use bastide_model::pty::PtyOutput;
///
/// let mut output = PtyOutput::default();
/// output.push(b"caf\xc3");
/// assert_eq!(output.collect(None).output, b"caf"); // the rest of `é` may still come
/// output.push(b"\xa9");
/// output.close();
/// assert_eq!(output.collect(None).output, "é".as_bytes());
/// ```
#[derive(Debug, Clone, Default)]
pub struct PtyOutput {
    pending: Vec<u8>,
    closed: bool,
}

impl PtyOutput {
    /// Adds what the process wrote.
    pub fn push(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
    }

    /// Notes that no more output can come.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether no more output can come.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// What no call has shown yet.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// How much longer a call goes on waiting that has waited for `waited` of `yield_time_ms`;
    /// `None` when it is time to collect. A call waits its whole time for more output, and ends
    /// early only when no more can come.
    #[must_use]
    pub fn wait(&self, waited: Duration, yield_time_ms: i64) -> Option<Duration> {
        let whole = Duration::from_millis(u64::try_from(yield_time_ms).unwrap_or(0));
        let left = whole.saturating_sub(waited);
        (!self.closed && !left.is_zero()).then_some(left)
    }

    /// Takes what arrived, as text within `max_output_tokens`. The beginning of a character whose
    /// rest may still come stays for the next call.
    pub fn collect(&mut self, max_output_tokens: Option<i64>) -> CollectedOutput {
        let kept = if self.closed { 0 } else { incomplete_utf8_suffix_length(&self.pending) };
        let carried = self.pending.split_off(self.pending.len() - kept);
        let taken = std::mem::replace(&mut self.pending, carried);
        let text = String::from_utf8_lossy(&taken);
        let cut = formatted_truncate_text_with_token_count(&text, max_output_tokens);
        CollectedOutput {
            output: cut.text.into_bytes(),
            original_token_count: cut.original_token_count,
            output_closed: self.closed,
        }
    }
}

/// How many bytes at the end of `data` are the beginning of a character whose rest may still come.
#[must_use]
pub fn incomplete_utf8_suffix_length(data: &[u8]) -> usize {
    let tail = &data[data.len().saturating_sub(3)..];
    for start in (0..tail.len()).rev() {
        if is_utf8_continuation(tail[start]) {
            continue;
        }
        // `error_len` is `None` exactly when the input ends within a character.
        let incomplete =
            std::str::from_utf8(&tail[start..]).is_err_and(|error| error.error_len().is_none());
        return if incomplete { tail.len() - start } else { 0 };
    }
    0
}

fn is_utf8_continuation(byte: u8) -> bool {
    (0x80..=0xBF).contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_only_what_may_still_become_a_character() {
        let cases: &[(&[u8], usize)] = &[
            (b"", 0),
            (b"a", 0),
            (b"\xc3", 1),
            (b"a\xe4\xb8", 2),
            (b"\xf0\x9f\x98", 3),
            (b"\xf0\x9f\x98\x80", 0),
            (b"\xed\xa0", 0),
            (b"\xc1", 0),
            (b"\xf5", 0),
            (b"\x80\x80\x80", 0),
        ];
        for (data, want) in cases {
            assert_eq!(incomplete_utf8_suffix_length(data), *want, "{data:?}");
        }
    }

    #[test]
    fn waits_its_whole_time_unless_the_output_ends() {
        let mut output = PtyOutput::default();
        let second = Duration::from_secs(1);
        assert_eq!(output.wait(second, 1500), Some(Duration::from_millis(500)));
        assert_eq!(output.wait(second, 1000), None);
        output.close();
        assert_eq!(output.wait(Duration::ZERO, 1500), None);
    }
}
