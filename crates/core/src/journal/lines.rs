//! Texts line by line: what is different, and both differences in one.

use std::fmt::Write as _;
use std::ops::Range;

use imara_diff::{Algorithm, Diff, InternedInput};

/// How many lines around a change are shown.
const CONTEXT: u32 = 3;

/// A part of one text, and what stands for it in another.
type Hunk = (Range<u32>, Range<u32>);

fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn hunks(before: &[&[u8]], after: &[&[u8]]) -> Vec<Hunk> {
    let mut input = InternedInput::default();
    input.update_before(before.iter().copied());
    input.update_after(after.iter().copied());
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    diff.hunks().map(|hunk| (hunk.before, hunk.after)).collect()
}

fn some<'a, 'b>(lines: &'b [&'a [u8]], range: &Range<u32>) -> &'b [&'a [u8]] {
    let at = |line: u32| usize::try_from(line).unwrap_or(usize::MAX);
    lines.get(at(range.start)..at(range.end)).unwrap_or_default()
}

/// The difference of two texts, as `diff -u` writes it but for the names; and how many lines are new, and
/// how many gone.
pub(super) fn unified(before: &str, after: &str) -> (String, u64, u64) {
    let (before, after) = (split(before.as_bytes()), split(after.as_bytes()));
    let all = hunks(&before, &after);
    let mut text = String::new();
    let count = |of: fn(&Hunk) -> &Range<u32>| {
        all.iter().map(|hunk| u64::from(of(hunk).end - of(hunk).start)).sum()
    };
    let (added, removed) = (count(|hunk| &hunk.1), count(|hunk| &hunk.0));
    let mut group: Vec<Hunk> = Vec::new();
    for hunk in all {
        if group.last().is_some_and(|last| hunk.0.start - last.0.end > 2 * CONTEXT) {
            show(&mut text, &group, &before, &after);
            group.clear();
        }
        group.push(hunk);
    }
    show(&mut text, &group, &before, &after);
    (text, added, removed)
}

fn show(text: &mut String, group: &[Hunk], before: &[&[u8]], after: &[&[u8]]) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let length = u32::try_from(before.len()).unwrap_or(u32::MAX);
    let lead = first.0.start.min(CONTEXT);
    let trail = length.saturating_sub(last.0.end).min(CONTEXT);
    let (old, new) =
        (first.0.start - lead..last.0.end + trail, first.1.start - lead..last.1.end + trail);
    // What is empty lies behind a line, not on one.
    let place = |range: &Range<u32>| match range.end - range.start {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        count => format!("{},{count}", range.start + 1),
    };
    // Writing to a string does not fail.
    let _ = writeln!(text, "@@ -{} +{} @@", place(&old), place(&new));
    let mut at = old.start;
    for (removed, added) in group {
        lines(text, ' ', some(before, &(at..removed.start)));
        lines(text, '-', some(before, removed));
        lines(text, '+', some(after, added));
        at = removed.end;
    }
    lines(text, ' ', some(before, &(at..old.end)));
}

fn lines(text: &mut String, mark: char, lines: &[&[u8]]) {
    for line in lines {
        text.push(mark);
        text.push_str(&String::from_utf8_lossy(line));
        if !line.ends_with(b"\n") {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

/// Both changes of a text in one; nothing where they touch each other and are not the same.
pub(super) fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let (base, ours, theirs) = (split(base), split(ours), split(theirs));
    let mut own = hunks(&base, &ours).into_iter().peekable();
    let mut other = hunks(&base, &theirs).into_iter().peekable();
    let mut merged: Vec<&[u8]> = Vec::new();
    let mut at = 0;
    loop {
        let (hunk, lines) = match (own.peek(), other.peek()) {
            (None, None) => break,
            (Some(one), Some(two)) => {
                let touch = one.0.start <= two.0.end && two.0.start <= one.0.end;
                let same = one.0 == two.0 && some(&ours, &one.1) == some(&theirs, &two.1);
                match (touch, same) {
                    (true, true) => {
                        other.next();
                        (own.next()?, &ours)
                    }
                    (true, false) => return None,
                    (false, _) if one.0.start < two.0.start => (own.next()?, &ours),
                    (false, _) => (other.next()?, &theirs),
                }
            }
            (Some(_), None) => (own.next()?, &ours),
            (None, Some(_)) => (other.next()?, &theirs),
        };
        merged.extend(some(&base, &(at..hunk.0.start)));
        merged.extend(some(lines, &hunk.1));
        at = hunk.0.end;
    }
    merged.extend(some(&base, &(at..u32::try_from(base.len()).unwrap_or(u32::MAX))));
    Some(merged.concat())
}

/// Whether this is text, as far as lines are concerned.
pub(super) fn is_text(content: &[u8]) -> bool {
    !content.contains(&0) && std::str::from_utf8(content).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_differences_as_diff_does() {
        let (text, added, removed) = unified("a\nb\nc\n", "a\nB\nc\nd");
        let want = "@@ -1,3 +1,4 @@\n a\n-b\n+B\n c\n+d\n\\ No newline at end of file\n";
        assert_eq!((text.as_str(), added, removed), (want, 2, 1));
        assert_eq!(unified("", "a\n").0, "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(unified("same\n", "same\n"), (String::new(), 0, 0));
    }

    #[test]
    fn merges_what_does_not_touch_and_nothing_else() {
        let base = b"1\n2\n3\n4\n5\n";
        type Case<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);
        let cases: &[Case<'_>] = &[
            (b"one\n2\n3\n4\n5\n", b"1\n2\n3\n4\nfive\n", Some(b"one\n2\n3\n4\nfive\n")),
            (b"1\n2\n3\n4\n5\n", b"1\n3\n4\n5\n", Some(b"1\n3\n4\n5\n")),
            (b"1\nx\n3\n4\n5\n", b"1\nx\n3\n4\n5\n", Some(b"1\nx\n3\n4\n5\n")),
            (b"1\nx\n3\n4\n5\n", b"1\ny\n3\n4\n5\n", None),
            (b"1\n2\n3\n4\n5\n6\n", b"1\n2\n3\n4\n5\nsix\n", None),
            (b"0\n1\n2\n3\n4\n5\n", b"1\n2\n3\n4\n5\n6\n", Some(b"0\n1\n2\n3\n4\n5\n6\n")),
        ];
        for (ours, theirs, want) in cases {
            assert_eq!(merge(base, ours, theirs).as_deref(), *want);
            assert_eq!(merge(base, theirs, ours).as_deref(), *want, "the other way round");
        }
    }
}
