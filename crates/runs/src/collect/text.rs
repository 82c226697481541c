//! The lines of a patch.

use std::io::{self, Write};

use imara_diff::{Algorithm, Diff, InternedInput};

/// How many lines around a change are shown.
const CONTEXT: u32 = 3;

/// Whether this is written as lines. Whatever is not UTF-8 is not, so that a patch always is.
pub(super) fn is_text(content: &[u8]) -> bool {
    !content.contains(&0) && std::str::from_utf8(content).is_ok()
}

/// Writes the hunks between two texts; how many lines are more, and how many less.
pub(super) fn write_hunks(old: &[u8], new: &[u8], out: &mut dyn Write) -> io::Result<(u64, u64)> {
    let (old, new) = (lines(old), lines(new));
    let mut input = InternedInput::default();
    input.update_before(old.iter().copied());
    input.update_after(new.iter().copied());
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let counts = (u64::from(diff.count_additions()), u64::from(diff.count_removals()));
    let lengths = (count(&old)?, count(&new)?);
    let mut group: Vec<(std::ops::Range<u32>, std::ops::Range<u32>)> = Vec::new();
    for hunk in diff.hunks() {
        let is_far =
            |last: &(std::ops::Range<u32>, _)| hunk.before.start - last.0.end > 2 * CONTEXT;
        if group.last().is_some_and(is_far) {
            write_group(&group, lengths, &old, &new, out)?;
            group.clear();
        }
        group.push((hunk.before, hunk.after));
    }
    if !group.is_empty() {
        write_group(&group, lengths, &old, &new, out)?;
    }
    Ok(counts)
}

/// How many lines a text has, as additions and deletions count them.
pub(super) fn line_count(content: &[u8]) -> u64 {
    lines(content).len() as u64
}

/// The lines, each with its end.
pub(super) fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

fn count(lines: &[&[u8]]) -> io::Result<u32> {
    u32::try_from(lines.len()).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

fn write_group(
    group: &[(std::ops::Range<u32>, std::ops::Range<u32>)],
    lengths: (u32, u32),
    old: &[&[u8]],
    new: &[&[u8]],
    out: &mut dyn Write,
) -> io::Result<()> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return Ok(()) };
    let lead = first.0.start.min(CONTEXT);
    let trail = (lengths.0 - last.0.end).min(CONTEXT);
    let before = first.0.start - lead..last.0.end + trail;
    let after = first.1.start - lead..last.1.end + trail;
    writeln!(out, "@@ -{} +{} @@", range(&before), range(&after))?;
    let mut at = before.start;
    for (removed, added) in group {
        write_lines(b' ', old, at..removed.start, out)?;
        write_lines(b'-', old, removed.clone(), out)?;
        write_lines(b'+', new, added.clone(), out)?;
        at = removed.end;
    }
    write_lines(b' ', old, at..before.end, out)
}

fn range(lines: &std::ops::Range<u32>) -> String {
    match lines.end - lines.start {
        // What is empty lies behind a line, not on one.
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}

fn write_lines(
    mark: u8,
    lines: &[&[u8]],
    range: std::ops::Range<u32>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for line in lines.get(range.start as usize..range.end as usize).unwrap_or_default() {
        out.write_all(&[mark])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunks(old: &str, new: &str) -> String {
        let mut out = Vec::new();
        write_hunks(old.as_bytes(), new.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn writes_hunks_as_git_does() {
        assert_eq!(hunks("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        assert_eq!(hunks("a\nb\n", ""), "@@ -1,2 +0,0 @@\n-a\n-b\n");
        let missing = "\\ No newline at end of file\n";
        assert_eq!(hunks("a", "a\n"), format!("@@ -1 +1 @@\n-a\n{missing}+a\n"));
        let old: String = (0..30).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n5\n", "\nfive\n").replace("\n20\n", "\n");
        let got = hunks(&old, &new);
        let heads: Vec<_> = got.lines().filter(|line| line.starts_with("@@")).collect();
        assert_eq!(heads, ["@@ -3,7 +3,7 @@", "@@ -18,7 +18,6 @@"]);
    }
}
