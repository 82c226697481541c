//! Reading an archive: all of it, before anything is touched.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

use bastide_archive::tar::{LinkPolicy, Ownership, TarKind, TarReader};
use bastide_archive::{Action, EntryPath, TarRestore};
use bastide_model::PosixPath;
use bastide_proto::request::{Entry, EntryKind, OnConflict};

use super::OWNERS;
use crate::compat::raise;
use crate::session::files::{Spool, SpoolError};
use crate::snapshot::paths::{NodeId, PathTree};
use crate::workspace::{Target, UploadItem, lay_out};
use crate::{Condition, Content, Error, ErrorClass, ErrorKind, Result, Session};

/// Everything in an archive, with the contents of its files in a file of our own.
pub(super) struct Unpacked {
    pub(super) contents: File,
    /// By the names that lead there; where nothing is said there is a folder.
    pub(super) entries: PathTree<Unpacking>,
    /// Whether the owners are those of a session.
    pub(super) has_owners: bool,
}

/// One entry of an archive.
pub(super) struct Unpacking {
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) ownership: Ownership,
}

pub(super) enum Kind {
    Dir,
    /// Where its content is, and how long.
    File {
        at: u64,
        size: u64,
    },
    Symlink {
        target: Vec<u8>,
    },
    Link {
        to: NodeId,
    },
    Fifo,
}

/// Reads all of an archive.
pub(super) async fn whole(archive: File, root: &str) -> Result<Unpacked> {
    let root = root.to_owned();
    let read = tokio::task::spawn_blocking(move || read(archive, &root)).await;
    read.map_err(|error| {
        Error::new(ErrorKind::Internal, "the reader of an archive failed").with_source(error)
    })?
}

fn read(archive: File, root: &str) -> Result<Unpacked> {
    let refuse = |name: &[u8], reason: &str| {
        raise::workspace_archive_write(root)
            .with_context("member", String::from_utf8_lossy(name).into_owned())
            .with_context("reason", reason)
    };
    let failed = |error: io::Error| raise::workspace_archive_write(root).with_source(error);
    let damaged = |error: Error| {
        let raised = raise::workspace_archive_write(root);
        let reason = error.context().get("reason").cloned();
        let raised = match reason {
            Some(reason) => raised.with_context("reason", reason),
            None => raised,
        };
        raised.with_source(error)
    };
    let mut contents = tempfile::tempfile().map_err(failed)?;
    let length = archive.metadata().ok().map(|archive| archive.len());
    let archive = io::BufReader::with_capacity(1 << 20, archive);
    let mut reader = TarReader::open_sized(archive, length);
    let reader = reader.as_mut().map_err(|error| {
        raise::workspace_archive_write(root).with_source(error.message().to_owned())
    })?;
    let mut entries: PathTree<Unpacking> = PathTree::default();
    let (mut at, mut has_owners) = (0, false);
    let is_dir = |entry: &Unpacking| matches!(entry.kind, Kind::Dir);
    while let Some(member) = reader.next_member().map_err(damaged)? {
        let names = names(&member.name).ok_or_else(|| refuse(&member.name, "path leads out"))?;
        let kind = match member.kind {
            TarKind::Dir => Kind::Dir,
            TarKind::File => {
                let copied = io::copy(&mut reader.content(), &mut contents).map_err(failed)?;
                if copied != member.size {
                    return Err(refuse(&member.name, "archive member is cut off"));
                }
                let kind = Kind::File { at, size: copied };
                at += copied;
                kind
            }
            TarKind::Symlink => Kind::Symlink { target: member.link.clone() },
            TarKind::Hardlink => {
                let to = self::names(&member.link).and_then(|to| entries.find(&to));
                let to = to.filter(|to| {
                    let first = entries.get(*to).map(|entry| &entry.kind);
                    matches!(first, Some(Kind::File { .. }))
                });
                Kind::Link { to: to.ok_or_else(|| refuse(&member.name, "hardlink to no file"))? }
            }
            TarKind::Fifo => Kind::Fifo,
            _ => return Err(refuse(&member.name, "unsupported member type")),
        };
        has_owners |= names.is_empty() && member.note(OWNERS.0) == Some(OWNERS.1);
        let mode = member.mode & 0o7777;
        let entry = Unpacking { kind, mode, ownership: member.ownership() };
        let place = entries.reach(&names);
        let place = place.ok_or_else(|| refuse(&member.name, "archive has too many folders"))?;
        match entries.get(place) {
            None => {}
            Some(before) if is_dir(before) && is_dir(&entry) => {}
            Some(_) => return Err(refuse(&member.name, "duplicate member")),
        }
        if names.is_empty() && !is_dir(&entry) {
            return Err(refuse(&member.name, "the workspace is no folder"));
        }
        entries.put(place, entry);
    }
    let mut walked = entries.walk();
    let odd = walked.find(|step| step.is_above && step.value.is_some_and(|entry| !is_dir(entry)));
    if let Some(odd) = odd {
        let name = entries.names(odd.place).join(&b'/');
        return Err(refuse(&name, "something lies below it, and it is no folder"));
    }
    contents.flush().and_then(|()| contents.seek(SeekFrom::Start(0))).map_err(failed)?;
    Ok(Unpacked { contents, entries, has_owners })
}

/// The names that lead to a member; `None` if they lead out.
fn names(name: &[u8]) -> Option<Vec<Vec<u8>>> {
    if name.is_empty() || name.starts_with(b"/") || name.contains(&0) {
        return None;
    }
    let parts = name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    let fits = |part: &Vec<u8>| part != b".." && part.len() <= 255;
    parts.iter().all(fits).then_some(parts)
}

/// Unpacks an archive of whomever, by the reference's rules.
pub(crate) async fn by_the_rules(
    session: &Session,
    data: Content<'_>,
    links: LinkPolicy,
) -> Result<()> {
    let root = session.root().as_str().to_owned();
    let refused = {
        let root = root.clone();
        move |error: Error| {
            let mut raised = raise::workspace_archive_write(&root);
            for key in ["reason", "member", "limit", "actual"] {
                if let Some(value) = error.context().get(key) {
                    raised = raised.with_context(key, value.clone());
                }
            }
            if let Some(hint) = error.hint() {
                raised = raised.with_hint(hint);
            }
            let names_a_member = matches!(
                error.class(),
                Some(ErrorClass::UnsafeTarMemberError | ErrorClass::ArchiveResourceLimitError)
            );
            if names_a_member {
                raised = raised.with_condition(Condition::MemberRefused);
            }
            raised.with_source(error)
        }
    };
    let spool = Spool::fill(data, None).await.map_err(|why| {
        let error = raise::workspace_archive_write(&root);
        match why {
            SpoolError::Io(failure) => error.with_source(failure),
            SpoolError::TooLong(_) => error,
        }
    })?;
    let reader =
        spool.reader().map_err(|error| raise::workspace_archive_write(&root).with_source(error))?;
    // CallVerdict before the first request: a refused archive leaves nothing behind.
    let folder = root.clone();
    let judged =
        tokio::task::spawn_blocking(move || TarRestore::open(reader, links, &folder)).await;
    let mut plan = judged
        .map_err(|error| Error::new(ErrorKind::Internal, "reading failed").with_source(error))?
        .map_err(&refused)?;
    let target = Target {
        link: session.link.as_ref(),
        base: session.root(),
        existing: OnConflict::Replaced,
        through_links: false,
        progress: None,
    };
    let at_root = |error: Error| not_unpacked(session.root().as_str(), error);
    // The reference's client for containers runs `tar` there, which keeps permissions; the one for this machine does not.
    let keeps_modes = session.backend.has_own_system();
    let laid_out = lay_out(&target, move |items| {
        let mut folders = Vec::new();
        while let Some(step) = plan.next_step().map_err(&refused)? {
            let place = path_of(&step.path);
            let archived = step.archived_mode.filter(|_| keeps_modes);
            match step.action {
                Action::Dir => {
                    if archived.is_some() {
                        folders.push((place.clone(), archived));
                    }
                    items.send(UploadItem::Entry(Entry::new(place, EntryKind::Dir)))?;
                }
                Action::Link { target } => {
                    let kind = EntryKind::Symlink { target: target.into() };
                    items.send(UploadItem::Entry(Entry::new(place, kind)))?;
                }
                Action::File { mode, mut content } => {
                    let mode = archived.or(mode);
                    let entry = Entry { mode, ..Entry::new(place, EntryKind::File) };
                    let failed = |error| raise::workspace_archive_write(&root).with_source(error);
                    items.file(entry, &mut *content, |_| {}, failed)?;
                }
            }
        }
        // When everything is in them, and the inner ones first: their own may keep anybody out.
        for (place, mode) in folders.into_iter().rev() {
            items.send(UploadItem::Entry(Entry { mode, ..Entry::new(place, EntryKind::Dir) }))?;
        }
        Ok(())
    });
    laid_out.await.map_err(at_root)
}

/// The error of a member that cannot be put where it belongs: as of the whole archive, with the member
/// and the reason.
fn not_unpacked(root: &str, error: Error) -> Error {
    if error.class() != Some(ErrorClass::WorkspaceArchiveWriteError)
        || error.condition() == Some(&Condition::MemberRefused)
    {
        return error;
    }
    let member = match error.condition() {
        Some(Condition::EntryNotMade(path)) => PosixPath::new(path).below(&PosixPath::new(root)),
        _ => None,
    };
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Error>());
    let errno = cause.and_then(Error::errno);
    let raised = raise::workspace_archive_write(root);
    let raised = match (member, errno) {
        (Some(member), Some(EISDIR | EEXIST | ENOTEMPTY)) => raised
            .with_context("reason", format!("destination directory already exists: {member}"))
            .with_context("member", member.to_string()),
        (Some(member), Some(ELOOP)) => raised
            .with_context("reason", "symlink in parent path")
            .with_context("member", member.to_string()),
        _ => raised,
    };
    raised.with_source(error)
}

/// Numbers of errors, as every Linux has them.
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const ENOTEMPTY: i32 = 39;
const ELOOP: i32 = 40;

fn path_of(path: &EntryPath) -> Vec<u8> {
    match path.is_root() {
        true => Vec::new(),
        false => path.as_bytes().to_vec(),
    }
}

/// A part of a file.
pub(super) fn part(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, at)
}
