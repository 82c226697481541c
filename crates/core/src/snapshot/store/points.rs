//! Points of journals: trees of a session, beside the snapshots that have names.
//!
//! A point is called by its fingerprint. Its record lies in `points/SESSION`, and what it needs is kept
//! like what snapshots need, for as long as the record is there.

mod file_tree;
mod part;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use file_tree::{Change, FileTree, Node, NodeKind, TreePath, shown};

use super::chunk::ChunkId;
use super::errors::failed;
use super::reader::{ReadBuffers, Reader};
use super::record::{self, SnapshotInfo};
use super::save::Scanned;
use super::tree::{FilePart, TreeReader, TreeWriter};
use super::writer::Writer;
use super::{Store, Tree, blocking, now_ms, sync_folder};
use crate::host::make_private;
use crate::{Condition, Error, ErrorKind, Result};

/// The folder of all points.
const POINTS: &str = "points";

/// A tree that was looked through, and is not kept yet.
#[derive(Debug)]
pub(crate) struct ScannedTree {
    writer: Arc<Writer>,
    scanned: Scanned,
}

/// A tree that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedPoint {
    pub(crate) fingerprint: String,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) files_read: u64,
    pub(crate) bytes_stored: u64,
    /// What is in the tree and cannot be kept: the path, and the reason.
    pub(crate) left_out: Vec<(String, String)>,
    pub(crate) left_out_count: u64,
    /// Files that changed while they were read.
    pub(crate) changed: Vec<String>,
    /// What the guest knows the tree by, if nothing ran meanwhile.
    pub(crate) token: Option<[u8; 16]>,
}

/// A point, and what reads the content of its files.
#[derive(Debug, Clone)]
pub(crate) struct OpenPoint {
    pub(crate) tree: Arc<FileTree>,
    reader: Arc<Reader>,
}

impl OpenPoint {
    /// The same point as if whoever has its top folder were whoever has that of another: sessions may have users of
    /// their own.
    pub(crate) fn owned_as(self, other: &Self) -> Self {
        let top = TreePath::new();
        let owner = |point: &Self| point.tree.get(&top).map(|node| (node.uid, node.gid));
        let (Some(from), Some(to)) = (owner(&self), owner(other)) else { return self };
        if from == to {
            return self;
        }
        let mut tree = FileTree::clone(&self.tree);
        for node in tree.0.values_mut() {
            node.uid = if node.uid == from.0 { to.0 } else { node.uid };
            node.gid = if node.gid == from.1 { to.1 } else { node.gid };
        }
        Self { tree: Arc::new(tree), reader: self.reader }
    }

    /// The content of a file of at most so many bytes; nothing if it is longer.
    pub(crate) fn content(&self, file_parts: &[FilePart], most: u64) -> Result<Option<Vec<u8>>> {
        let length: u64 = file_parts.iter().map(FilePart::length).sum();
        if length > most {
            return Ok(None);
        }
        let mut content = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
        let mut room = ReadBuffers::default();
        for file_part in file_parts {
            match file_part {
                FilePart::Hole(length) => {
                    let hole = usize::try_from(*length).unwrap_or(0);
                    content.resize(content.len() + hole, 0);
                }
                FilePart::Chunk { id, .. } => self.reader.with(id, &mut room, |bytes| {
                    content.extend_from_slice(bytes);
                    Ok(())
                })?,
            }
        }
        Ok(Some(content))
    }
}

/// New content for a tree that is made here.
pub(crate) struct Composer {
    store: Store,
    writer: Arc<Writer>,
}

impl Composer {
    /// Puts content into the store.
    pub(crate) fn file(&self, content: &[u8]) -> Result<Vec<FilePart>> {
        let mut file_parts = Vec::new();
        let mut rest = content;
        self.writer.put_stream(
            |buffer| {
                let length = rest.len().min(buffer.len());
                buffer[..length].copy_from_slice(&rest[..length]);
                rest = &rest[length..];
                Ok(length)
            },
            &mut file_parts,
        )?;
        Ok(file_parts)
    }

    /// Keeps a tree as a point of a session.
    pub(crate) fn keep(self, session: &str, tree: &FileTree) -> Result<String> {
        let mut list = TreeWriter::new(Arc::clone(&self.writer));
        for entry in tree.entries(|_| true) {
            list.add(entry)?;
        }
        let (entries, bytes) = (list.entries, list.bytes);
        let chunks = list.finish()?;
        let info = point_info(session, &chunks, entries, bytes, Vec::new());
        self.store.keep(session, &self.writer, &info)?;
        Ok(info.fingerprint)
    }
}

fn point_info(
    session: &str,
    chunks: &[ChunkId],
    entries: u64,
    bytes: u64,
    left_out: Vec<(String, String)>,
) -> SnapshotInfo {
    let fingerprint = record::fingerprint(chunks);
    SnapshotInfo {
        name: fingerprint.clone(),
        fingerprint,
        created_at_ms: now_ms(),
        session: Some(session.to_owned()),
        entries,
        bytes,
        left_out,
        tree: chunks.iter().map(ChunkId::to_string).collect(),
    }
}

impl Store {
    fn points_of(&self, session: &str) -> PathBuf {
        self.folder(POINTS).join(session)
    }

    /// Looks through a tree. Whatever changes from now on is not in it.
    pub(crate) async fn scan_tree(&self, tree: &Tree<'_>) -> Result<ScannedTree> {
        let (writer, scanned) = self.scan(tree).await?;
        Ok(ScannedTree { writer, scanned })
    }

    /// Keeps a tree as a point of a session: it is on the disk when this returns.
    pub(crate) async fn keep_point(&self, tree: ScannedTree, session: &str) -> Result<SavedPoint> {
        let (store, session) = (self.clone(), session.to_owned());
        blocking(move || {
            let ScannedTree { writer, scanned } = tree;
            let (chunks, cache, report, entries, bytes) = scanned.assembler.end()?;
            let info = point_info(&session, &chunks, entries, bytes, report.left_out.clone());
            let bytes_stored = store.keep(&session, &writer, &info)?;
            // The point is there; without a cache the next one only takes longer.
            drop(cache.finish());
            Ok(SavedPoint {
                fingerprint: info.fingerprint,
                entries,
                bytes,
                files_read: report.files_read,
                bytes_stored,
                left_out: report.left_out,
                left_out_count: report.left_out_count,
                changed: report.changed,
                token: scanned.token,
            })
        })
        .await
    }

    /// Makes a point visible; says how many bytes of the disk its new content takes.
    fn keep(&self, session: &str, writer: &Writer, info: &SnapshotInfo) -> Result<u64> {
        let (packs, written) = writer.finish()?;
        let folder = self.points_of(session);
        let place = folder.join(record::file_name(&info.name));
        // One that is there has everything it needs, for as long as it is there.
        if place.try_exists().map_err(|error| failed("look for", &place, error))? {
            return Ok(written.stored);
        }
        if make_private(&folder).map_err(|error| failed("make", &folder, error))? {
            sync_folder(&self.folder(POINTS))?;
            sync_folder(self.home())?;
        }
        self.publish_in(&folder, writer, &packs, info)?;
        Ok(written.stored)
    }

    /// Whether a session has a point.
    pub(crate) fn has_point(&self, session: &str, fingerprint: &str) -> bool {
        self.points_of(session).join(record::file_name(fingerprint)).exists()
    }

    /// Opens a point of a session.
    pub(crate) async fn open_point(&self, session: &str, fingerprint: &str) -> Result<OpenPoint> {
        let (store, folder) = (self.clone(), self.points_of(session));
        let fingerprint = fingerprint.to_owned();
        blocking(move || {
            let (reader, info) = store.reading(|| record::read(&folder, &fingerprint))?;
            let reader = Arc::new(reader);
            let tree = FileTree::read(TreeReader::new(Arc::clone(&reader), info.chunks()?))?;
            Ok(OpenPoint { tree: Arc::new(tree), reader })
        })
        .await
    }

    /// Begins a tree that is made here.
    pub(crate) fn compose(&self) -> Result<Composer> {
        Ok(Composer { store: self.clone(), writer: Arc::new(self.writer()?) })
    }

    /// Gives a point of one session to another as well, or the name of a snapshot.
    pub(crate) async fn share_point(
        &self,
        session: &str,
        fingerprint: &str,
        with: PointOwner,
    ) -> Result<SnapshotInfo> {
        let (store, from) = (self.clone(), self.points_of(session));
        let fingerprint = fingerprint.to_owned();
        blocking(move || {
            let writer = store.writer()?;
            let info = record::read(&from, &fingerprint)?;
            match with {
                PointOwner::Session(id) => {
                    let info = SnapshotInfo { session: Some(id.clone()), ..info };
                    store.keep(&id, &writer, &info)?;
                    Ok(info)
                }
                PointOwner::Snapshot(name) => {
                    record::check_name(&name)?;
                    let info = SnapshotInfo { name, ..info };
                    store.publish(&writer, &[], &info)?;
                    Ok(info)
                }
            }
        })
        .await
    }

    /// Replaces a tree by that of a point.
    pub(crate) async fn restore_point(
        &self,
        tree: &Tree<'_>,
        session: &str,
        fingerprint: &str,
    ) -> Result<()> {
        let point = self.open_point(session, fingerprint).await?;
        part::send_all(tree, &point).await
    }

    /// Makes a tree that is what one point says what another says, and touches nothing else.
    pub(crate) async fn restore_difference(
        &self,
        tree: &Tree<'_>,
        from: &FileTree,
        to: &OpenPoint,
    ) -> Result<()> {
        part::send_difference(tree, from, to).await
    }

    /// Removes the points of a session but those that are needed.
    pub(crate) fn thin_points(&self, session: &str, needed: &HashSet<String>) -> Result<()> {
        let folder = self.points_of(session);
        for name in record::names(&folder)? {
            if !needed.contains(&name) {
                let path = folder.join(record::file_name(&name));
                match fs::remove_file(&path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(failed("remove", &path, error)),
                }
            }
        }
        Ok(())
    }

    /// Removes all points of a session that is gone.
    pub(crate) fn forget_points(&self, session: &str) -> Result<()> {
        let folder = self.points_of(session);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("remove", &folder, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes points of sessions of this home that are gone. A session has its folder before its
    /// first point, and nobody can name a point without the journal in that folder.
    pub(super) fn forget_orphans(&self) -> Result<()> {
        let sessions = self.home().with_file_name("sessions");
        if !sessions.is_dir() {
            return Ok(());
        }
        for session in folders_in(&self.folder(POINTS))? {
            let place = sessions.join(&session);
            // What cannot be told may be there.
            if matches!(place.try_exists(), Ok(false)) {
                self.forget_points(&session)?;
            }
        }
        Ok(())
    }

    /// All points, as `SESSION@FINGERPRINT`; those of which nothing can be read, too.
    pub(super) fn list_points(&self) -> Result<Vec<(String, Result<SnapshotInfo>)>> {
        let mut all = Vec::new();
        for session in folders_in(&self.folder(POINTS))? {
            let folder = self.points_of(&session);
            for name in record::names(&folder)? {
                match record::read(&folder, &name) {
                    Err(error) if error.is_not_found() => {}
                    read => all.push((format!("{session}@{name}"), read)),
                }
            }
        }
        Ok(all)
    }

    /// Every record there is, of snapshots and of points: the folder it is in, and its name there.
    pub(super) fn all_records(&self) -> Result<Vec<(PathBuf, String)>> {
        let mut folders = vec![self.folder("snapshots")];
        folders.extend(folders_in(&self.folder(POINTS))?.iter().map(|id| self.points_of(id)));
        let mut all = Vec::new();
        for folder in folders {
            let names = record::names(&folder)?;
            all.extend(names.into_iter().map(|name| (folder.clone(), name)));
        }
        Ok(all)
    }
}

/// Who is to have a point.
#[derive(Debug, Clone)]
pub(crate) enum PointOwner {
    Session(String),
    Snapshot(String),
}

/// The names of the folders in a folder.
fn folders_in(folder: &Path) -> Result<Vec<String>> {
    let reading = |error| failed("read", folder, error);
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(reading(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(reading)?.file_name().into_string().ok());
    }
    Ok(names)
}

/// A point that is on record and not in the store.
pub(crate) fn lost(point: &str, error: Error) -> Error {
    if error.condition() != Some(&Condition::SnapshotMissing) {
        return error;
    }
    Error::new(ErrorKind::NotFound, format!("the files of {point} are not in the store any more"))
        .with_condition(Condition::PointDamaged)
}
