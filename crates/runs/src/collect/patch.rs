//! A patch that `git apply` takes: text by lines, everything else as the whole new content.

use std::io::{self, Cursor, Read, Write};

use flate2::Compression;
use flate2::read::ZlibEncoder;

use super::baseline::Baseline;
use super::changes::{CountingWriter, Delta};
use super::content::Content;
use super::oid::Oid;
use super::quote::{ended, quoted};
use super::scan::FileMode;
use super::text::{is_text, line_count, write_hunks};
use super::{ChangeStatus, ChangedFile, base85};

/// A patch that is being written.
pub(super) struct Patch<'b, W> {
    base: &'b Baseline,
    out: CountingWriter<W>,
}

/// One version of a file, with what the patch says of it.
struct Version {
    mode: FileMode,
    oid: Oid,
    content: Content,
}

/// One file of the patch.
struct PatchedFile<'p> {
    old_path: &'p [u8],
    path: &'p [u8],
    similarity: Option<u8>,
    old: Option<Version>,
    new: Option<Version>,
}

impl<'b, W: Write> Patch<'b, W> {
    pub(super) fn new(base: &'b Baseline, out: W) -> Self {
        Self { base, out: CountingWriter { inner: out, count: 0 } }
    }

    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.out.count)
    }

    /// Writes the change of one file; `None` if there is none, because a new file went meanwhile.
    pub(super) fn add(&mut self, delta: &Delta) -> io::Result<Option<ChangedFile>> {
        let old = delta.old.as_ref().map(|entry| {
            let content = self.base.content(entry);
            Version { mode: entry.mode, oid: content.oid(self.base.hash), content }
        });
        let new = match &delta.new {
            None => None,
            Some(file) => match self.base.now(&delta.path, file.mode)? {
                Some(content) => {
                    Some(Version { mode: file.mode, oid: content.oid(self.base.hash), content })
                }
                // It went since it was found. Whatever it replaced is gone then.
                None => None,
            },
        };
        let (old_path, path, similarity) = match (&delta.old_path, &new) {
            (Some((old, similarity)), Some(_)) => {
                (old.as_slice(), delta.path.as_slice(), Some(*similarity))
            }
            (Some((old, _)), None) => (old.as_slice(), old.as_slice(), None),
            (None, _) => (delta.path.as_slice(), delta.path.as_slice(), None),
        };
        let types = (old.as_ref().map(|old| old.mode), new.as_ref().map(|new| new.mode));
        let status = match types {
            (Some(old), Some(new)) if old.is_link() != new.is_link() => ChangeStatus::TypeChanged,
            (Some(_), Some(_)) if similarity.is_some() => ChangeStatus::Renamed,
            (Some(_), Some(_)) => ChangeStatus::Modified,
            (Some(_), None) => ChangeStatus::Deleted,
            (None, Some(_)) => ChangeStatus::Added,
            (None, None) => return Ok(None),
        };
        let chunk = PatchedFile { old_path, path, similarity, old, new };
        let counts = match status {
            ChangeStatus::TypeChanged => self.write_twice(chunk)?,
            _ => self.write(chunk)?,
        };
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        Ok(Some(ChangedFile {
            path: text(path),
            old_path: similarity.map(|_| text(old_path)),
            status,
            additions: counts.map(|counts| counts.0),
            deletions: counts.map(|counts| counts.1),
        }))
    }

    /// What becomes something else goes first, and then comes.
    fn write_twice(&mut self, chunk: PatchedFile<'_>) -> io::Result<Option<(u64, u64)>> {
        let PatchedFile { old_path, path, old, new, .. } = chunk;
        let similarity = None;
        let gone = self.write(PatchedFile { old_path, path, similarity, old, new: None })?;
        let come = self.write(PatchedFile { old_path, path, similarity, old: None, new })?;
        Ok(gone.zip(come).map(|(gone, come)| (come.0, gone.1)))
    }

    fn write(&mut self, chunk: PatchedFile<'_>) -> io::Result<Option<(u64, u64)>> {
        let PatchedFile { old_path, path, similarity, old, new } = chunk;
        let out = &mut self.out;
        writeln!(out, "diff --git {} {}", quoted("a/", old_path), quoted("b/", path))?;
        let same_mode = match (&old, &new) {
            (Some(old), Some(new)) if old.mode != new.mode => {
                writeln!(out, "old mode {}", old.mode.as_str())?;
                writeln!(out, "new mode {}", new.mode.as_str())?;
                None
            }
            (Some(old), Some(_)) => Some(old.mode),
            (Some(old), None) => {
                writeln!(out, "deleted file mode {}", old.mode.as_str())?;
                None
            }
            (None, Some(new)) => {
                writeln!(out, "new file mode {}", new.mode.as_str())?;
                None
            }
            (None, None) => None,
        };
        let zero = self.base.hash.zero();
        let oid = |version: &Option<Version>| version.as_ref().map_or(zero, |version| version.oid);
        let (before, after) = (oid(&old), oid(&new));
        if let Some(similarity) = similarity {
            let similarity = if before == after { 100 } else { similarity.min(99) };
            writeln!(out, "similarity index {similarity}%")?;
            writeln!(out, "rename from {}", quoted("", old_path))?;
            writeln!(out, "rename to {}", quoted("", path))?;
        }
        if before == after {
            return Ok(Some((0, 0)));
        }
        match same_mode {
            Some(mode) => writeln!(out, "index {before}..{after} {}", mode.as_str())?,
            None => writeln!(out, "index {before}..{after}")?,
        }
        let text = |version: &Option<Version>| match version {
            None => Some(Vec::new()),
            Some(version) => {
                version.content.whole().filter(|text| is_text(text)).map(<[u8]>::to_vec)
            }
        };
        let (Some(before), Some(after)) = (text(&old), text(&new)) else {
            return self.write_binary(old, new).map(|()| None);
        };
        if before.is_empty() && after.is_empty() {
            return Ok(Some((0, 0)));
        }
        let name = |there: bool, prefix: &str, path: &[u8]| match there {
            true => ended(prefix, path),
            false => "/dev/null".to_owned(),
        };
        writeln!(out, "--- {}", name(old.is_some(), "a/", old_path))?;
        writeln!(out, "+++ {}", name(new.is_some(), "b/", path))?;
        match (old.is_some(), new.is_some()) {
            (true, true) => write_hunks(&before, &after, out).map(Some),
            _ => {
                write_hunks(&before, &after, out)?;
                Ok(Some((line_count(&after), line_count(&before))))
            }
        }
    }

    /// The new content, and the old one for whoever wants to take the patch back, if it is known.
    fn write_binary(&mut self, old: Option<Version>, new: Option<Version>) -> io::Result<()> {
        let content = |version: Option<Version>| {
            version.map_or(Content::Whole(Vec::new()), |version| version.content)
        };
        self.out.write_all(b"GIT binary patch\n")?;
        self.write_literal(content(new))?;
        match content(old) {
            Content::Unknown(_) => Ok(()),
            old => self.write_literal(old),
        }
    }

    fn write_literal(&mut self, content: Content) -> io::Result<()> {
        let (size, mut deflated): (u64, Box<dyn Read>) = match content {
            Content::Whole(content) => {
                let size = content.len() as u64;
                (size, Box::new(ZlibEncoder::new(Cursor::new(content), Compression::default())))
            }
            Content::Deflated { data, size, .. } => (size, Box::new(io::BufReader::new(data))),
            Content::Unknown(_) => return Err(io::Error::other("it is not known any more")),
        };
        writeln!(self.out, "literal {size}")?;
        base85::write_lines(&mut deflated, &mut self.out)?;
        self.out.write_all(b"\n")
    }
}
