//! The diff engine: hunks found by their context instead of by line numbers.

use crate::error::Result;
use crate::error::raise;
use crate::text::{is_blank, trim};

/// What a diff is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffMode {
    /// It changes a text.
    Update,
    /// It is the whole of a new text.
    Create,
}

const END_OF_PATCH: &str = "*** End Patch";
const END_OF_FILE: &str = "*** End of File";

fn ends_section(line: &str) -> bool {
    [END_OF_PATCH, "*** Update File:", "*** Delete File:", "*** Add File:"]
        .iter()
        .any(|marker| line.starts_with(marker))
}

/// Applies `diff` to `input`.
///
/// Line ends come out as in the input, or as in the diff where there is no line of input to go by.
///
/// ```
/// use bastide_model::patch::{DiffMode, apply_diff};
///
/// let text = apply_diff("one\ntwo\nthree\n", "@@\n one\n-two\n+2\n", DiffMode::Update)?;
/// assert_eq!(text, "one\n2\nthree\n");
/// # Ok::<(), bastide_model::Error>(())
/// ```
///
/// # Errors
/// `ValueError` if the diff is malformed or its context is not in the input.
pub fn apply_diff(input: &str, diff: &str, mode: DiffMode) -> Result<String> {
    let model = if mode == DiffMode::Update && input.contains('\n') { input } else { diff };
    let newline = if model.contains("\r\n") { "\r\n" } else { "\n" };
    let lines = diff_lines(diff);
    if mode == DiffMode::Create {
        return Ok(created_lines(&lines)?.join(newline));
    }
    let input = input.replace("\r\n", "\n");
    let original: Vec<&str> = input.split('\n').collect();
    let chunks = Parser { lines: &lines, index: 0, original: &original }.chunks()?;
    Ok(apply_chunks(&original, &chunks)?.join(newline))
}

/// The lines of a diff. The end marker comes last, so that a reader always meets one.
fn diff_lines(diff: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = diff.split('\n').map(|line| line.trim_end_matches('\r')).collect();
    if lines.last() == Some(&"") {
        lines.pop();
    }
    lines.push(END_OF_PATCH);
    lines
}

fn created_lines<'a>(lines: &[&'a str]) -> Result<Vec<&'a str>> {
    let content = lines.iter().take_while(|line| !ends_section(line));
    content
        .map(|line| {
            let text = line.strip_prefix('+');
            text.ok_or_else(|| raise::value_error(format!("Invalid Add File Line: {line}")))
        })
        .collect()
}

/// Lines to take out and put in at one place of the original.
struct Chunk<'a> {
    at: usize,
    removed: usize,
    inserted: Vec<&'a str>,
}

/// What stands between two headers: the lines expected in the original, and changes among them.
#[derive(Default)]
struct Section<'a> {
    context: Vec<&'a str>,
    chunks: Vec<Chunk<'a>>,
    at_end_of_file: bool,
}

struct Parser<'a> {
    lines: &'a [&'a str],
    index: usize,
    original: &'a [&'a str],
}

impl<'a> Parser<'a> {
    fn line(&self) -> &'a str {
        self.lines.get(self.index).copied().unwrap_or_default()
    }

    fn is_done(&self) -> bool {
        let line = self.line();
        self.index >= self.lines.len() || ends_section(line) || line.starts_with(END_OF_FILE)
    }

    fn chunks(mut self) -> Result<Vec<Chunk<'a>>> {
        let mut chunks = Vec::new();
        let mut cursor = 0;
        while !self.is_done() {
            let (anchors, headers) = self.read_headers();
            if headers == 0 && cursor != 0 {
                return Err(raise::value_error(format!("Invalid Line:\n{}", self.line())));
            }
            for (position, anchor) in anchors.iter().enumerate() {
                match self.find_anchor(anchor, cursor, position > 0) {
                    Some(found) => cursor = found,
                    // One header alone is a hint; several are a way that has to exist.
                    None if headers > 1 => {
                        let message = format!("Invalid Anchor {cursor}:\n{anchor}");
                        return Err(raise::value_error(message));
                    }
                    None => {}
                }
            }
            let section = self.read_section()?;
            let Some(found) = self.find_section(&section, cursor) else {
                let of_file = if section.at_end_of_file { " EOF" } else { "" };
                let context = section.context.join("\n");
                let message = format!("Invalid{of_file} Context {cursor}:\n{context}");
                return Err(raise::value_error(message));
            };
            cursor = found + section.context.len();
            let shifted = section.chunks.into_iter();
            chunks.extend(shifted.map(|chunk| Chunk { at: chunk.at + found, ..chunk }));
        }
        Ok(chunks)
    }

    /// Reads the headers before a hunk: those that say something, and how many there are in all.
    fn read_headers(&mut self) -> (Vec<&'a str>, usize) {
        let (mut anchors, mut count) = (Vec::new(), 0);
        loop {
            let line = self.line();
            match line.strip_prefix("@@ ") {
                Some(anchor) if !trim(anchor).is_empty() => anchors.push(anchor),
                Some(_) => {}
                None if line == "@@" => {}
                None => return (anchors, count),
            }
            count += 1;
            self.index += 1;
        }
    }

    /// Where to go on after the line a header names; `None` if there is no such line. The first
    /// header may also name a line that was passed already.
    fn find_anchor(&self, anchor: &str, cursor: usize, only_forward: bool) -> Option<usize> {
        let (before, after) = self.original.split_at(cursor.min(self.original.len()));
        let find = |same: &dyn Fn(&str) -> bool| {
            if !only_forward && before.iter().any(|line| same(line)) {
                return Some(cursor);
            }
            after.iter().position(|line| same(line)).map(|offset| cursor + offset + 1)
        };
        find(&|line| line == anchor).or_else(|| find(&|line| trim(line) == trim(anchor)))
    }

    fn read_section(&mut self) -> Result<Section<'a>> {
        let start = self.index;
        let mut section = Section::default();
        let mut open: Option<Chunk<'a>> = None;
        while self.index < self.lines.len() {
            let raw = self.line();
            let ends = raw.starts_with("@@") || ends_section(raw) || raw.starts_with(END_OF_FILE);
            if ends || raw == "***" {
                break;
            }
            // An empty line is an empty line of context whose blank was lost.
            let line = if raw.is_empty() { " " } else { raw };
            let kind = line.chars().next().filter(|kind| "+- ".contains(*kind));
            let Some(kind) = kind else {
                return Err(raise::value_error(format!("Invalid Line: {line}")));
            };
            self.index += 1;
            let text = &line[1..];
            if kind == ' ' {
                section.chunks.extend(open.take());
                section.context.push(text);
                continue;
            }
            let at = section.context.len();
            let chunk = open.get_or_insert(Chunk { at, removed: 0, inserted: Vec::new() });
            if kind == '-' {
                chunk.removed += 1;
                section.context.push(text);
            } else {
                chunk.inserted.push(text);
            }
        }
        section.chunks.extend(open);
        if self.line() == END_OF_FILE && self.index < self.lines.len() {
            self.index += 1;
            section.at_end_of_file = true;
        } else if self.index == start {
            let (index, line) = (self.index, self.line());
            let message = format!("Nothing in this section - index={index} {line}");
            return Err(raise::value_error(message));
        }
        Ok(section)
    }

    fn find_section(&self, section: &Section<'_>, cursor: usize) -> Option<usize> {
        if !section.at_end_of_file {
            return find_context(self.original, &section.context, cursor);
        }
        // What follows the last line end is the end of the text, not a line of it.
        let lines = match self.original {
            [lines @ .., ""] => lines,
            lines => lines,
        };
        let end = lines.len().saturating_sub(section.context.len());
        find_context(lines, &section.context, end)
            .or_else(|| find_context(lines, &section.context, cursor.min(lines.len())))
    }
}

/// Where `context` stands in `lines` from `start` on: exactly, else but for blanks at line ends,
/// else but for blanks around lines.
fn find_context(lines: &[&str], context: &[&str], start: usize) -> Option<usize> {
    if context.is_empty() {
        return Some(start);
    }
    let lines = lines.get(start..)?;
    let find = |form: fn(&str) -> &str| find_sequence(lines, context, form);
    let found = find(|line| line)
        .or_else(|| find(|line| line.trim_end_matches(is_blank)))
        .or_else(|| find(trim));
    found.map(|offset| start + offset)
}

/// Knuth, Morris and Pratt: a file of equal lines must not cost its square.
fn find_sequence(lines: &[&str], wanted: &[&str], form: fn(&str) -> &str) -> Option<usize> {
    let same = |a: &str, b: &str| form(a) == form(b);
    let mut fallback = vec![0; wanted.len()];
    let mut matched = 0;
    for index in 1..wanted.len() {
        while matched > 0 && !same(wanted[matched], wanted[index]) {
            matched = fallback[matched - 1];
        }
        matched += usize::from(same(wanted[matched], wanted[index]));
        fallback[index] = matched;
    }
    let mut matched = 0;
    for (index, line) in lines.iter().enumerate() {
        while matched > 0 && !same(wanted[matched], line) {
            matched = fallback[matched - 1];
        }
        matched += usize::from(same(wanted[matched], line));
        if matched == wanted.len() {
            return Some(index + 1 - matched);
        }
    }
    None
}

fn apply_chunks<'a>(original: &[&'a str], chunks: &[Chunk<'a>]) -> Result<Vec<&'a str>> {
    let mut lines = Vec::with_capacity(original.len());
    let mut cursor = 0;
    for chunk in chunks {
        if chunk.at > original.len() {
            let (at, length) = (chunk.at, original.len());
            let message = format!("applyDiff: chunk.origIndex {at} > input length {length}");
            return Err(raise::value_error(message));
        }
        if cursor > chunk.at {
            let message = format!("applyDiff: overlapping chunk at {} (cursor {cursor})", chunk.at);
            return Err(raise::value_error(message));
        }
        lines.extend_from_slice(&original[cursor..chunk.at]);
        lines.extend_from_slice(&chunk.inserted);
        cursor = chunk.at + chunk.removed;
    }
    lines.extend_from_slice(original.get(cursor..).unwrap_or_default());
    Ok(lines)
}
