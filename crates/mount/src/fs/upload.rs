//! Storing what was written: whole, or in parts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rustix::io::Errno;
use tokio::sync::SemaphorePermit;

use super::blocks::Object;
use super::file::FileNode;
use super::folders::Entry;
use super::{Fs, errno};
use crate::cache::BLOCK;
use crate::store::{ObjectMeta, Part};

/// What is stored in one request; larger files go in parts of this size at least.
const PART: u64 = 8 << 20;
/// S3 takes ten thousand.
const MAX_PARTS: u64 = 9_000;
/// Parts of a file on their way at once.
const PARALLEL_PARTS: usize = 2;

/// The longest file that can be stored: parts are no larger than twice the usual ones, because they are held in memory. A
/// command makes a file of any length in no time.
pub(super) const MAX_FILE: u64 = MAX_PARTS * 2 * PART;

/// What may be held in memory of all that is on its way to the store, in MiB.
pub(super) const MEMORY: usize = 24;

impl Fs {
    /// Stores a file under the name it has now.
    pub(super) async fn upload(
        &self,
        node: u64,
        file: &FileNode,
        disk: &File,
    ) -> Result<(), Errno> {
        let path = self.tree().path(node).ok_or(Errno::STALE)?;
        let meta = self.upload_as(file, disk, path).await?;
        let (folder, name) = self.parent_and_name(node)?;
        self.folders().stored(folder, &name, Entry::File(meta));
        Ok(())
    }

    /// Stores a file under a path. What the folder of it has is not changed.
    pub(super) async fn upload_as(
        &self,
        file: &FileNode,
        disk: &File,
        path: String,
    ) -> Result<ObjectMeta, Errno> {
        let key = format!("{}{path}", self.root);
        let size = disk.metadata().map_err(|error| errno(&error))?.len();
        let stored = if size <= PART {
            self.upload_whole(&key, disk, size).await
        } else {
            self.upload_in_parts(&key, disk, size).await
        };
        let outcome = stored.as_ref().map(drop).map_err(|errno| *errno);
        self.report_change("write", path.clone(), None, size, &outcome);
        let meta = match stored {
            Ok(meta) => meta,
            Err(errno) => {
                file.state().failed = true;
                return Err(errno);
            }
        };
        self.staging.stored(&path);
        file.was_given(&meta);
        let mut state = file.state();
        state.in_kernel = Some(Arc::clone(&meta.version));
        state.dirty = false;
        state.failed = false;
        drop(state);
        Ok(meta)
    }

    async fn upload_whole(&self, key: &str, disk: &File, size: u64) -> Result<ObjectMeta, Errno> {
        let (bytes, _held) = self.part(disk, 0, size).await?;
        let meta = self.store.put(key, bytes.clone()).await.map_err(|fault| fault.errno())?;
        if size > 0 && size <= BLOCK {
            self.blocks.keep(&Object::new(&self.store, key.to_owned(), meta.clone()), &bytes);
        }
        Ok(meta)
    }

    async fn upload_in_parts(
        &self,
        key: &str,
        disk: &File,
        size: u64,
    ) -> Result<ObjectMeta, Errno> {
        let part = size.div_ceil(MAX_PARTS).next_multiple_of(1 << 20).max(PART);
        let upload = self.store.begin(key, size).await.map_err(|fault| fault.errno())?;
        let parallel = if self.store.uploads_in_order() { 1 } else { PARALLEL_PARTS };
        let offsets = (0..size.div_ceil(part)).map(|index| index * part);
        let parts: Result<Vec<String>, Errno> = futures::stream::iter((1..).zip(offsets))
            .map(|(number, offset)| {
                let upload = &upload;
                async move {
                    let (bytes, _held) = self.part(disk, offset, part.min(size - offset)).await?;
                    let part = Part { number, offset, bytes };
                    self.store.part(upload, part).await.map_err(|fault| fault.errno())
                }
            })
            .buffered(parallel)
            .try_collect()
            .await;
        let done = match parts {
            Ok(parts) => self.store.complete(&upload, &parts).await.map_err(|fault| fault.errno()),
            Err(errno) => Err(errno),
        };
        if done.is_err() {
            self.store.abort(&upload).await;
        }
        done
    }

    /// A part of a file, once there is room for it.
    async fn part(
        &self,
        file: &File,
        offset: u64,
        size: u64,
    ) -> Result<(Bytes, SemaphorePermit<'_>), Errno> {
        let wanted = u32::try_from(size.div_ceil(1 << 20)).map_err(|_| Errno::FBIG)?;
        let held = self.uploading.acquire_many(wanted.max(1)).await.map_err(|_| Errno::IO)?;
        Ok((read_part(file, offset, size)?, held))
    }
}

fn read_part(file: &File, offset: u64, size: u64) -> Result<Bytes, Errno> {
    let mut data = vec![0; usize::try_from(size).map_err(|_| Errno::FBIG)?];
    file.read_exact_at(&mut data, offset).map_err(|error| errno(&error))?;
    Ok(data.into())
}
