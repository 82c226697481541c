//! Watching for changes.

use std::collections::VecDeque;

use bastide_proto::End;
use bastide_proto::files::{Change, ChangedPath, FileOp};
use serde_bytes::ByteBuf;
use serde_json::json;

use super::Files;
use super::call;
use super::files_error::{FilesError, is_missing};
use super::path::Target;
use crate::Result;
use crate::compat::raise;
use crate::link::fault::refused;
use crate::link::{Incoming, Stream, broken, decode};

/// Something that changed below a watched folder. Paths are from that folder on; a folder's own
/// path is empty. Bytes that are not UTF-8 are shown as U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileChange {
    /// It is new here.
    Created {
        /// Where.
        path: String,
        /// Whether it is a folder.
        is_dir: bool,
    },
    /// Its content changed.
    Modified {
        /// Where.
        path: String,
        /// Whether it is a folder.
        is_dir: bool,
    },
    /// Its permissions, owner or times changed.
    Attributes {
        /// Where.
        path: String,
        /// Whether it is a folder.
        is_dir: bool,
    },
    /// It is gone from here.
    Removed {
        /// Where.
        path: String,
        /// Whether it was a folder.
        is_dir: bool,
    },
    /// It has another name.
    Renamed {
        /// What it was called.
        from: String,
        /// What it is called now.
        path: String,
        /// Whether it is a folder.
        is_dir: bool,
    },
    /// More changed than was kept. What was not reported has to be looked for.
    Overflow,
    /// A folder is not watched, because there are more than can be.
    NotWatched {
        /// Where.
        path: String,
    },
    /// The watched folder itself is gone: nothing more comes.
    Gone,
}

/// Changes as they come. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    stream: Stream,
    waiting: VecDeque<FileChange>,
    is_over: bool,
}

impl Files<'_> {
    /// Watches a folder or a file. From when this returns on no change is missed; where more come than
    /// can be kept, that is said.
    ///
    /// # Errors
    ///
    /// `WorkspaceReadNotFoundError` if there is no such folder, else `WorkspaceArchiveReadError`;
    /// `InvalidManifestPathError` if its path leads out.
    pub async fn watch(&self, path: &str) -> Result<Watch> {
        self.begin_watch(path, false).await
    }

    /// Watches a folder and all below it, as [`watch`](Self::watch) does.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn watch_all(&self, path: &str) -> Result<Watch> {
        self.begin_watch(path, true).await
    }

    async fn begin_watch(&self, path: &str, recursive: bool) -> Result<Watch> {
        let scope = self.extension("watch", || json!({"path": path, "recursive": recursive}));
        let work = async {
            let target = Target::new(self.policy, path, raise::workspace_read_not_found)?;
            let begun = self.try_watch(&target, recursive).await;
            begun.map_err(|failure| {
                failure.into_error(self.policy, &target, |fault| match is_missing(&fault) {
                    true => {
                        raise::workspace_read_not_found(&target.given).with_source(refused(fault))
                    }
                    false => {
                        raise::workspace_archive_read(&target.given).with_source(refused(fault))
                    }
                })
            })
        };
        scope.record_unit(work).await
    }

    async fn try_watch(&self, target: &Target, recursive: bool) -> Result<Watch, FilesError> {
        let op = FileOp::Watch { path: target.path.clone(), recursive };
        let mut stream = self.open_call(op).await?;
        let first: Vec<Change> = call::item(&mut stream).await?;
        let waiting = first.into_iter().map(change).collect();
        Ok(Watch { stream, waiting, is_over: false })
    }
}

impl Watch {
    /// The next change, however long that takes; `None` after [`FileChange::Gone`].
    ///
    /// # Errors
    ///
    /// Fails with [`AgentLost`](crate::ErrorKind::AgentLost) if the guest is gone.
    pub async fn next(&mut self) -> Result<Option<FileChange>> {
        loop {
            if let Some(change) = self.waiting.pop_front() {
                return Ok(Some(change));
            }
            if self.is_over {
                return Ok(None);
            }
            match self.stream.from_guest.next().await? {
                Incoming::Item(item) => {
                    let changes: Vec<Change> = decode(&item)?;
                    self.waiting.extend(changes.into_iter().map(change));
                }
                Incoming::End(End::Done) => self.is_over = true,
                Incoming::End(End::Failed(fault)) => return Err(refused(fault)),
                _ => return Err(broken("not a change")),
            }
        }
    }
}

fn change(change: Change) -> FileChange {
    let text = |path: ByteBuf| String::from_utf8_lossy(&path).into_owned();
    match change {
        Change::Created(ChangedPath { path, is_dir }) => {
            FileChange::Created { path: text(path), is_dir }
        }
        Change::Modified(ChangedPath { path, is_dir }) => {
            FileChange::Modified { path: text(path), is_dir }
        }
        Change::Attributes(ChangedPath { path, is_dir }) => {
            FileChange::Attributes { path: text(path), is_dir }
        }
        Change::Removed(ChangedPath { path, is_dir }) => {
            FileChange::Removed { path: text(path), is_dir }
        }
        Change::Renamed { from, to: ChangedPath { path, is_dir } } => {
            FileChange::Renamed { from: text(from), path: text(path), is_dir }
        }
        Change::NotWatched(ChangedPath { path, .. }) => FileChange::NotWatched { path: text(path) },
        Change::Gone => FileChange::Gone,
        // What a newer guest has to say that we do not know is something that was missed.
        _ => FileChange::Overflow,
    }
}
