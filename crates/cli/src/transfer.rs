//! Copying files and folders between this machine and sessions.
//!
//! What comes out of a session is somebody else's: its names are checked, no link is followed on the way
//! in, and what would lead out of the copy is left out and said.

mod host;
mod new_file;
mod session;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bastide::{Error, ErrorKind, Progress, Result};

use crate::ui::ProgressLine;

pub(crate) use host::{HostSink, HostSource};
pub(crate) use session::{SessionSink, SessionSource};

/// The deepest folder that is copied. A path can be longer only by having no names in it.
const MAX_DEPTH: usize = 512;

/// What something is that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    File,
    Link(String),
    /// Neither: a pipe, a socket, a device.
    Other,
}

/// Something that is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyEntry {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Its permission bits, without those that give anybody else's rights.
    pub(crate) mode: u32,
    /// When it was last changed.
    pub(crate) modified: SystemTime,
}

/// Where things are copied from. Paths are relative to what is copied; the empty one is that itself.
pub(crate) enum Source<'a> {
    Host(HostSource),
    Session(SessionSource<'a>),
}

/// Where things are copied to. Paths are relative to the copy; the empty one is that itself.
pub(crate) enum Sink<'a> {
    Host(HostSink),
    Session(SessionSink<'a>),
}

/// What was copied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyReport {
    pub(crate) files: u64,
    pub(crate) folders: u64,
    pub(crate) links: u64,
    /// What was not copied, and why.
    pub(crate) left_out: Vec<String>,
}

impl Source<'_> {
    /// What is copied, as the caller calls it.
    fn name(&self) -> String {
        match self {
            Self::Host(source) => source.name(),
            Self::Session(source) => source.name().to_owned(),
        }
    }

    /// What is copied itself, links followed; its name is of no meaning.
    async fn top(&self) -> Result<CopyEntry> {
        match self {
            Self::Host(source) => source.top().await,
            Self::Session(source) => source.top().await,
        }
    }

    async fn children(&self, path: &str, left_out: &mut Vec<String>) -> Result<Vec<CopyEntry>> {
        match self {
            Self::Host(source) => source.children(path, left_out).await,
            Self::Session(source) => source.children(path, left_out).await,
        }
    }
}

/// Copies a file, or a folder with everything in it, and tells how far it is.
pub(crate) async fn copy(
    from: &Source<'_>,
    to: &mut Sink<'_>,
    meter: &CopyProgress<'_>,
) -> Result<CopyReport> {
    let mut copied = CopyReport::default();
    // Folders get their times last: whatever is written into them changes those.
    let mut folders = Vec::new();
    let top = from.top().await?;
    if top.kind == Kind::Other {
        let message = format!("cannot copy {}: it is neither file nor folder", from.name());
        return Err(Error::new(ErrorKind::InvalidInput, message));
    }
    // What is still to be copied, the deepest first, so that little is open at a time.
    let mut open = vec![(String::new(), top, 0_usize)];
    while let Some((path, node, depth)) = open.pop() {
        match &node.kind {
            Kind::Folder if depth >= MAX_DEPTH => {
                let message = format!("{path}: more than {MAX_DEPTH} folders lie in each other");
                return Err(Error::new(ErrorKind::LimitExceeded, message));
            }
            Kind::Folder => {
                to.make_folder(&path, node.mode).await?;
                copied.folders += 1;
                folders.push((path.clone(), node.modified));
                let children = from.children(&path, &mut copied.left_out).await?;
                open.extend(children.into_iter().rev().map(|child| {
                    let below = if path.is_empty() { "" } else { "/" };
                    (format!("{path}{below}{}", child.name), child, depth + 1)
                }));
            }
            Kind::File => {
                to.write(&path, from, &node, meter).await?;
                copied.files += 1;
                meter.entry();
            }
            Kind::Link(target) => match leads_outside(&path, target) {
                // A link in a session leads nowhere but into the session.
                Some(leads) if matches!(to, Sink::Host(_)) => {
                    copied.left_out.push(format!("{path}: the link {leads} out, to {target}"));
                }
                _ => {
                    to.link(&path, target, node.modified).await?;
                    copied.links += 1;
                    meter.entry();
                }
            },
            Kind::Other => {
                copied.left_out.push(format!("{path}: neither file, folder nor link"));
            }
        }
    }
    for (path, modified) in folders.iter().rev() {
        to.set_folder_time(path, *modified).await?;
    }
    Ok(copied)
}

/// Counts what is copied, for whoever watches.
#[derive(Debug)]
pub(crate) struct CopyProgress<'a> {
    shown: &'a ProgressLine,
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl<'a> CopyProgress<'a> {
    pub(crate) fn new(shown: &'a ProgressLine) -> Self {
        Self { shown, entries: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn entry(&self) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.on_progress();
    }

    fn bytes(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        self.on_progress();
    }

    fn on_progress(&self) {
        let mut progress = Progress::default();
        progress.entries = self.entries.load(Ordering::Relaxed);
        progress.bytes = self.bytes.load(Ordering::Relaxed);
        self.shown.on_progress(progress);
    }
}

/// Whether a link in a copy leads to something that is not in it, or may: in a word.
///
/// A link goes up only from the folder it is in, which is a real one of the copy, and down from there.
/// Where a `..` comes after a name it cannot be told: the name may be another link, and what is above that
/// one's target anything. So no chain of such links leads out, however long it is.
fn leads_outside(path: &str, target: &str) -> Option<&'static str> {
    if target.starts_with('/') {
        return Some("leads");
    }
    let mut depth = path.split('/').count() - 1;
    let mut goes_down = false;
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if goes_down => return Some("may lead"),
            ".." if depth == 0 => return Some("leads"),
            ".." => depth -= 1,
            _ => goes_down = true,
        }
    }
    None
}

/// One side of a copy, as it is written: `ID:PATH`, a path of this machine, or `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CopyEndpoint {
    Host(PathBuf),
    Session { id: String, path: String },
    Stream,
}

impl CopyEndpoint {
    /// Reads one side. A path of this machine that has a colon in its first part is written with a
    /// `./` before it.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            None if text == "-" => Ok(Self::Stream),
            None if text.is_empty() => Err("expected a path, ID:PATH or -".to_owned()),
            // Names of sessions may have dots in them, and never begin with one.
            Some((id, path)) if !id.is_empty() && !id.starts_with('.') && !id.contains('/') => {
                let path = if path.is_empty() { "." } else { path };
                Ok(Self::Session { id: id.to_owned(), path: path.to_owned() })
            }
            _ => Ok(Self::Host(PathBuf::from(text))),
        }
    }
}

/// The last name of a path, as the name of a copy of it in a folder.
pub(crate) fn last_name(path: &str) -> Option<&str> {
    let name = path.trim_end_matches('/').rsplit('/').next()?;
    (!matches!(name, "" | "." | "..")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_sides() {
        let session =
            |id: &str, path: &str| CopyEndpoint::Session { id: id.into(), path: path.into() };
        let cases = [
            ("-", CopyEndpoint::Stream),
            ("abc:src/main.rs", session("abc", "src/main.rs")),
            ("abc:", session("abc", ".")),
            ("web.1:a", session("web.1", "a")),
            ("../abc:def", CopyEndpoint::Host("../abc:def".into())),
            ("abc:/workspace/a:b", session("abc", "/workspace/a:b")),
            ("./abc:def", CopyEndpoint::Host("./abc:def".into())),
            ("/tmp/a:b", CopyEndpoint::Host("/tmp/a:b".into())),
            ("file", CopyEndpoint::Host("file".into())),
            (":file", CopyEndpoint::Host(":file".into())),
        ];
        for (text, want) in cases {
            assert_eq!(CopyEndpoint::parse(text), Ok(want), "{text}");
        }
        assert!(CopyEndpoint::parse("").is_err());
    }

    #[test]
    fn knows_links_that_lead_out() {
        let cases = [
            ("a", "b", None),
            ("a", "/etc/passwd", Some("leads")),
            ("a", "../b", Some("leads")),
            ("d/a", "../b", None),
            ("d/a", "../../b", Some("leads")),
            ("d/a", "x/../../../b", Some("may lead")),
            // `up` may be a link to `..` itself.
            ("a", "d/up/../b", Some("may lead")),
            ("d/a", "./../b/c", None),
            ("d/e/a", "../.././b", None),
            ("", "..", Some("leads")),
        ];
        for (path, target, want) in cases {
            assert_eq!(leads_outside(path, target), want, "{path} -> {target}");
        }
    }

    #[test]
    fn names_a_copy_after_what_is_copied() {
        let cases = [
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("b", Some("b")),
            (".", None),
            ("a/..", None),
            ("/", None),
        ];
        for (path, want) in cases {
            assert_eq!(last_name(path), want, "{path}");
        }
    }
}
