//! Cutting long output down to a budget of tokens or bytes.
//!
//! A token is taken to be four bytes of UTF-8. What is kept is the head and the tail, with a marker
//! between them that says how much is missing.

use crate::text::split_lines;

/// How many bytes of text one token is taken to be.
pub const APPROX_BYTES_PER_TOKEN: i64 = 4;

/// A budget for text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationPolicy {
    /// At most this many bytes, and the marker on top.
    Bytes(i64),
    /// At most this many tokens, marker included.
    Tokens(i64),
}

impl TruncationPolicy {
    /// A budget of bytes; a negative one is empty.
    #[must_use]
    pub fn bytes(limit: i64) -> Self {
        Self::Bytes(limit.max(0))
    }

    /// A budget of tokens; a negative one is empty.
    #[must_use]
    pub fn tokens(limit: i64) -> Self {
        Self::Tokens(limit.max(0))
    }

    /// The word for what is counted: `bytes` or `tokens`.
    #[must_use]
    pub fn mode(self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes",
            Self::Tokens(_) => "tokens",
        }
    }

    /// The budget, in its own unit.
    #[must_use]
    pub fn limit(self) -> i64 {
        match self {
            Self::Bytes(limit) | Self::Tokens(limit) => limit,
        }
    }

    /// The budget in tokens.
    #[must_use]
    pub fn token_budget(self) -> i64 {
        match self {
            Self::Bytes(limit) => approx_tokens_from_byte_count(limit),
            Self::Tokens(limit) => limit,
        }
    }

    /// The budget in bytes.
    #[must_use]
    pub fn byte_budget(self) -> i64 {
        match self {
            Self::Bytes(limit) => limit,
            Self::Tokens(limit) => approx_bytes_for_tokens(limit),
        }
    }
}

/// Text that may have been cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncated {
    /// What is left.
    pub text: String,
    /// How many tokens there were, if any were cut.
    pub original_token_count: Option<i64>,
}

impl Truncated {
    fn whole(text: &str) -> Self {
        Self { text: text.to_owned(), original_token_count: None }
    }
}

/// How many bytes `tokens` tokens may take.
#[must_use]
pub fn approx_bytes_for_tokens(tokens: i64) -> i64 {
    tokens.max(0).saturating_mul(APPROX_BYTES_PER_TOKEN)
}

/// How many tokens `byte_count` bytes are.
#[must_use]
pub fn approx_tokens_from_byte_count(byte_count: i64) -> i64 {
    byte_count.max(0).saturating_add(APPROX_BYTES_PER_TOKEN - 1) / APPROX_BYTES_PER_TOKEN
}

/// How many tokens `text` is.
#[must_use]
pub fn approx_token_count(text: &str) -> i64 {
    approx_tokens_from_byte_count(byte_len(text))
}

fn byte_len(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

fn char_len(text: &str) -> i64 {
    i64::try_from(text.chars().count()).unwrap_or(i64::MAX)
}

/// The two halves of a budget; an odd one gives the larger half to the tail.
#[must_use]
pub fn split_budget(budget: i64) -> (i64, i64) {
    let left = budget.div_euclid(2);
    (left, budget - left)
}

/// The words that stand for what was removed.
#[must_use]
pub fn format_truncation_marker(policy: TruncationPolicy, removed_count: i64) -> String {
    match policy {
        TruncationPolicy::Tokens(_) => format!("…{removed_count} tokens truncated…"),
        TruncationPolicy::Bytes(_) => format!("…{removed_count} chars truncated…"),
    }
}

/// How much was removed, in the unit the marker of `policy` speaks of.
#[must_use]
pub fn removed_units_for_source(
    policy: TruncationPolicy,
    removed_bytes: i64,
    removed_chars: i64,
) -> i64 {
    match policy {
        TruncationPolicy::Tokens(_) => approx_tokens_from_byte_count(removed_bytes),
        TruncationPolicy::Bytes(_) => removed_chars,
    }
}

/// Head, marker and tail in one.
#[must_use]
pub fn assemble_truncated_output(prefix: &str, suffix: &str, marker: &str) -> String {
    [prefix, marker, suffix].concat()
}

/// A text cut in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitString<'a> {
    /// How many characters are neither in the head nor in the tail.
    pub removed_chars: i64,
    /// The head.
    pub before: &'a str,
    /// The tail.
    pub after: &'a str,
}

/// Takes at most `beginning_bytes` from the head and `end_bytes` from the tail, whole characters
/// only. Where the two overlap, the head has precedence.
///
/// ```
/// let split = bastide_model::truncation::split_string("aあbいc", 2, 4);
/// assert_eq!((split.removed_chars, split.before, split.after), (2, "a", "いc"));
/// ```
#[must_use]
pub fn split_string(text: &str, beginning_bytes: i64, end_bytes: i64) -> SplitString<'_> {
    let head = usize::try_from(beginning_bytes.max(0)).unwrap_or(usize::MAX);
    let tail = usize::try_from(end_bytes.max(0)).unwrap_or(usize::MAX);
    let head_end = text.floor_char_boundary(head);
    let tail_start = text.ceil_char_boundary(text.len().saturating_sub(tail)).max(head_end);
    SplitString {
        removed_chars: char_len(&text[head_end..tail_start]),
        before: &text[..head_end],
        after: &text[tail_start..],
    }
}

/// Cuts `content` so that it fits `policy` together with `prefix` and the marker. The prefix goes
/// first when there is no room, then the marker itself is cut.
fn truncate_token_output(content: &str, policy: TruncationPolicy, prefix: &str) -> String {
    let max_bytes = policy.byte_budget();
    if max_bytes == 0 {
        return String::new();
    }
    // The final marker is not known before the cut; the one for everything holds its place.
    let marker = format_truncation_marker(policy, approx_token_count(content));
    let fits = byte_len(prefix) + byte_len(&marker) <= max_bytes;
    let prefix = if fits { prefix } else { "" };
    let room = max_bytes - byte_len(prefix) - byte_len(&marker);
    if room < 0 {
        let end = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        return marker[..marker.floor_char_boundary(end)].to_owned();
    }
    let (left, right) = split_budget(room);
    let split = split_string(content, left, right);
    let removed_bytes = byte_len(content) - byte_len(split.before) - byte_len(split.after);
    let units = removed_units_for_source(policy, removed_bytes, split.removed_chars);
    let marker = format_truncation_marker(policy, units);
    assemble_truncated_output(&format!("{prefix}{}", split.before), split.after, &marker)
}

fn line_count_prefix(content: &str) -> String {
    format!("Total output lines: {}\n\n", split_lines(content).count())
}

/// Cuts `content` to `max_output_tokens`, and says how many lines there were if there is room.
///
/// ```
/// use bastide_model::truncation::formatted_truncate_text_with_token_count;
///
/// let cut = formatted_truncate_text_with_token_count(&"a".repeat(100), Some(10));
/// assert_eq!(cut.text, "aaaaaaa…22 tokens truncated…aaaaaaaa");
/// assert_eq!(cut.original_token_count, Some(25));
/// ```
#[must_use]
pub fn formatted_truncate_text_with_token_count(
    content: &str,
    max_output_tokens: Option<i64>,
) -> Truncated {
    let Some(limit) = max_output_tokens else { return Truncated::whole(content) };
    let policy = TruncationPolicy::tokens(limit);
    if byte_len(content) <= policy.byte_budget() {
        return Truncated::whole(content);
    }
    Truncated {
        text: truncate_token_output(content, policy, &line_count_prefix(content)),
        original_token_count: Some(approx_token_count(content)),
    }
}

/// Cuts `content` to `policy`, and says how many lines there were. Under a budget of bytes the line
/// count comes on top of the budget, as the marker does.
#[must_use]
pub fn formatted_truncate_text(content: &str, policy: TruncationPolicy) -> String {
    if byte_len(content) <= policy.byte_budget() {
        return content.to_owned();
    }
    let prefix = line_count_prefix(content);
    match policy {
        TruncationPolicy::Tokens(_) => truncate_token_output(content, policy, &prefix),
        TruncationPolicy::Bytes(_) => prefix + &truncate_with_byte_estimate(content, policy),
    }
}

/// Cuts `content` to `policy` without counting lines.
#[must_use]
pub fn truncate_text(content: &str, policy: TruncationPolicy) -> String {
    match policy {
        TruncationPolicy::Bytes(_) => truncate_with_byte_estimate(content, policy),
        TruncationPolicy::Tokens(_) => truncate_with_token_budget(content, policy).text,
    }
}

/// Cuts `content` to the token budget of `policy`, marker included.
#[must_use]
pub fn truncate_with_token_budget(content: &str, policy: TruncationPolicy) -> Truncated {
    let max_tokens = policy.token_budget();
    let fits = max_tokens > 0 && byte_len(content) <= approx_bytes_for_tokens(max_tokens);
    if content.is_empty() || fits {
        return Truncated::whole(content);
    }
    let text = truncate_token_output(content, policy, "");
    let cut = text != content;
    Truncated { text, original_token_count: cut.then(|| approx_token_count(content)) }
}

/// Cuts `content` to the byte budget of `policy`; the marker comes on top.
#[must_use]
pub fn truncate_with_byte_estimate(content: &str, policy: TruncationPolicy) -> String {
    let max_bytes = policy.byte_budget();
    if byte_len(content) <= max_bytes {
        return content.to_owned();
    }
    let (left, right) = split_budget(max_bytes);
    let split = split_string(content, left, right);
    let removed_bytes = byte_len(content) - max_bytes;
    let units = removed_units_for_source(policy, removed_bytes, split.removed_chars);
    let marker = format_truncation_marker(policy, units);
    assemble_truncated_output(split.before, split.after, &marker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_exceeds_a_token_budget() {
        let content = "aé中😀\n".repeat(40);
        for limit in 0..140 {
            let cut = formatted_truncate_text_with_token_count(&content, Some(limit));
            assert!(byte_len(&cut.text) <= limit * 4, "limit {limit}: {:?}", cut.text);
        }
    }
}
