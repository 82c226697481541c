//! Reading and writing files. What is changed is changed on disk, and stored whole when it is closed
//! or synced.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::io::Errno;

use super::blocks::{AccessPattern, Object, RUN};
use super::file::FileNode;
use super::handles::Handle;
use super::upload::MAX_FILE;
use super::{Answer, Fs, errno, text};
use crate::cache::BLOCK;
use crate::fuse::abi::{OPEN_KEEP_CACHE, Reply};
use crate::store::ObjectMeta;

const WRITES: u32 = 0o3;
const EXCLUSIVE: u32 = 0o200;
const TRUNCATES: u32 = 0o1000;
const REGULAR: u32 = 0o100_000;
const KIND: u32 = 0o170_000;

impl Fs {
    pub(super) async fn open(&self, node: u64, flags: u32) -> Answer {
        let file = self.file(node)?;
        // Counted first, so that nothing forgets or drops it while the store is asked.
        file.state().opens += 1;
        let opened = self.open_counted(node, &file, flags).await;
        if opened.is_err() {
            file.state().opens -= 1;
        }
        opened
    }

    async fn open_counted(&self, node: u64, file: &Arc<FileNode>, flags: u32) -> Answer {
        if flags & TRUNCATES != 0 && flags & WRITES != 0 {
            let mut content = file.content.lock().await;
            self.resize(node, file, &mut content, 0).await?;
        } else if file.needs_asking() {
            self.refresh_to_open(node, file).await?;
        }
        // Until it is in the table, so that whoever moves its folder either finds it there or has moved it.
        let tree = self.tree();
        let path = tree.path(node).ok_or(Errno::STALE)?;
        let mut state = file.state();
        let stored = state.stored.clone().filter(|_| state.local.is_none());
        let version = stored.as_ref().map(|meta| Arc::clone(&meta.version));
        let keep = version.is_none() || version == state.in_kernel;
        if version.is_some() {
            state.in_kernel = version;
        }
        drop(state);
        let key = format!("{}{path}", self.root);
        let object = stored.map(|meta| Object::new(&self.store, key, meta));
        let handle = self.handles.open_file(Handle::new(node, Arc::clone(file), object));
        drop(tree);
        Ok(Reply::Opened { handle, flags: if keep { OPEN_KEEP_CACHE } else { 0 } })
    }

    /// Whoever opens a file gets what the store has, as far as that is believed.
    async fn refresh_to_open(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        let fresh = {
            let state = file.state();
            let fresh = |since: Instant| since.elapsed() < self.spec.metadata_ttl();
            state.local.is_some() || state.known_since.is_some_and(fresh)
        };
        if fresh {
            return Ok(());
        }
        self.revalidate(node, file).await
    }

    pub(super) async fn create(&self, folder: u64, name: &[u8], flags: u32) -> Answer {
        let name = text(name)?;
        self.key_in(folder, name)?;
        let node = self.new_file(folder, name, flags & EXCLUSIVE != 0)?;
        let file = self.file(node)?;
        file.state().opens += 1;
        let mut content = file.content.lock().await;
        if let Err(errno) = self.resize(node, &file, &mut content, 0).await {
            file.state().opens -= 1;
            return Err(errno);
        }
        // Only now: one that could not be made is in no listing.
        let name: Arc<str> = name.into();
        let has_name = self.tree().child(folder, &name) == Some(node);
        if has_name {
            self.folders().pending(folder, &name);
        }
        drop(content);
        let handle = self.handles.open_file(Handle::new(node, Arc::clone(&file), None));
        Ok(Reply::Created { entry: self.attributes(node)?, handle })
    }

    fn new_file(&self, folder: u64, name: &str, exclusive: bool) -> Result<u64, Errno> {
        let name: Arc<str> = name.into();
        let mut tree = self.tree();
        if !tree.is_folder(folder) {
            return Err(Errno::STALE);
        }
        let before = tree.child(folder, &name).and_then(|id| tree.node(id)?.file.clone());
        // The kernel has looked before it asked, so this is a race that somebody else won.
        if exclusive && before.is_some_and(|file| file.is_local()) {
            return Err(Errno::EXIST);
        }
        let node = tree.ensure(folder, &name, false);
        tree.looked_up(node);
        tree.record().map_err(|error| errno(&error))?;
        Ok(node)
    }

    /// A file without anybody who has it open: it is in the store at once.
    pub(super) async fn make_node(&self, folder: u64, name: &[u8], mode: u32) -> Answer {
        if mode & KIND != REGULAR && mode & KIND != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let Reply::Created { entry, handle } = self.create(folder, name, EXCLUSIVE).await? else {
            return Err(Errno::IO);
        };
        let stored = self.sync(handle).await;
        self.release(handle).await?;
        stored?;
        Ok(Reply::Entry(entry))
    }

    pub(super) async fn read(&self, handle: u64, offset: u64, size: u32) -> Answer {
        self.counters.read();
        let handle = self.handles.file(handle)?;
        if handle.file.is_local() {
            let content = handle.file.content.lock().await;
            if let Some(file) = content.as_ref() {
                return read_local(file, offset, size).map(|data| Reply::Data(vec![data]));
            }
        }
        let mut object = handle.object().ok_or(Errno::IO)?;
        loop {
            let failed = match self.read_stored(&handle, &object, offset, size).await {
                Ok(chunks) => return Ok(Reply::Data(chunks)),
                Err(errno) => errno,
            };
            // Its folder was moved meanwhile: the store has the same under another key.
            let now = handle.object().ok_or(Errno::IO)?;
            if failed != Errno::STALE || now.key == object.key {
                self.note_failure(&handle, failed);
                return Err(failed);
            }
            object = now;
        }
    }

    /// Reads a version of a file from the store.
    async fn read_stored(
        &self,
        handle: &Handle,
        object: &Object,
        offset: u64,
        size: u32,
    ) -> Result<Vec<Bytes>, Errno> {
        let end = object.meta.size.min(offset.saturating_add(u64::from(size)));
        if offset >= end {
            return Ok(Vec::new());
        }
        if offset == 0 {
            self.note_small_read(handle.node, object.meta.size);
        }
        let (ahead, access) = {
            let mut ahead = super::lock(&handle.ahead);
            (ahead.note(offset, end - offset), ahead.access())
        };
        if let Some((from, count)) = ahead.filter(|_| object.blocks() > 1) {
            // The block that is waited for goes along.
            let now = offset / BLOCK;
            self.blocks.fetch(object, now, from - now + count, access);
        }
        let mut chunks = Vec::with_capacity(2);
        let mut at = offset;
        while at < end {
            let block = self.blocks.read(object, at / BLOCK).await?;
            let from = usize::try_from(at % BLOCK).unwrap_or(0);
            let length = usize::try_from((end - at).min(BLOCK)).unwrap_or(0);
            let to = block.len().min(from + length);
            if from >= to {
                return Err(Errno::IO);
            }
            chunks.push(block.slice(from..to));
            at += (to - from) as u64;
        }
        Ok(chunks)
    }

    /// Whoever opens a file after it turned out to be another gets the other one.
    fn note_failure(&self, handle: &Handle, errno: Errno) {
        if errno != Errno::STALE {
            return;
        }
        handle.file.invalidate();
        if let Ok((folder, _)) = self.parent_and_name(handle.node) {
            self.folders().forget(folder);
        }
    }

    pub(super) async fn write(&self, handle: u64, offset: u64, data: Vec<u8>) -> Answer {
        self.counters.write();
        let handle = self.handles.file(handle)?;
        let file = &handle.file;
        let ready = file.content.try_lock().ok().filter(|content| content.is_some());
        let (content, data) = match ready {
            Some(content) => (content, data),
            // It waits for the store, as the writes of any number of threads may.
            None => {
                let waiting = self.staging.hold(data).map_err(|error| errno(&error))?;
                let mut content = file.content.lock().await;
                self.localize(handle.node, file, &mut content).await?;
                (content, waiting.take().map_err(|error| errno(&error))?)
            }
        };
        let Some(disk) = content.as_ref() else { return Err(Errno::IO) };
        let before = file.staged();
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        let size = before.max(end);
        if size > MAX_FILE {
            return Err(Errno::FBIG);
        }
        self.staging.resize(before, size)?;
        if let Err(error) = disk.write_all_at(&data, offset) {
            // The part of it that there was room for is no part of the file.
            drop((size > before).then(|| disk.set_len(before)));
            self.staging.resize(size, before)?;
            return Err(errno(&error));
        }
        let mut state = file.state();
        state.local = Some((size, SystemTime::now()));
        state.dirty = true;
        state.failed = false;
        u32::try_from(data.len()).map(Reply::Written).map_err(|_| Errno::IO)
    }

    /// Has all of a file on disk, where it can be changed.
    async fn localize(
        &self,
        node: u64,
        file: &FileNode,
        content: &mut Option<File>,
    ) -> Result<(), Errno> {
        if content.is_some() {
            return Ok(());
        }
        let disk = self.staging.file().map_err(|error| errno(&error))?;
        let stored = file.state().stored.clone();
        let mut local = (0, SystemTime::now());
        if let Some(meta) = stored {
            if meta.size > MAX_FILE {
                return Err(Errno::FBIG);
            }
            local = (meta.size, meta.mtime);
            self.staging.resize(0, meta.size)?;
            if let Err(errno) = self.download_latest(node, file, meta, &disk).await {
                self.staging.resize(local.0, 0)?;
                return Err(errno);
            }
        }
        file.state().local = Some(local);
        *content = Some(disk);
        Ok(())
    }

    /// Downloads a file, from elsewhere if its folder is moved meanwhile.
    async fn download_latest(
        &self,
        node: u64,
        file: &FileNode,
        mut meta: ObjectMeta,
        disk: &File,
    ) -> Result<(), Errno> {
        let mut key = self.key(node)?;
        loop {
            let object = Object::new(&self.store, key.clone(), meta.clone());
            let downloaded = self.download(&object, disk).await;
            let now = self.key(node)?;
            if downloaded != Err(Errno::STALE) || now == key {
                return downloaded;
            }
            let stored = file.state().stored.clone();
            // A copy is as long as what it was made of.
            match stored.filter(|stored| stored.size == meta.size) {
                Some(copy) => (key, meta) = (now, copy),
                None => return downloaded,
            }
        }
    }

    async fn download(&self, object: &Object, disk: &File) -> Result<(), Errno> {
        for index in 0..object.blocks() {
            if index % RUN == 0 {
                self.blocks.fetch(object, index, 2 * RUN, AccessPattern::Sequential);
            }
            let block = self.blocks.read(object, index).await?;
            disk.write_all_at(&block, index * BLOCK).map_err(|error| errno(&error))?;
        }
        Ok(())
    }

    async fn resize(
        &self,
        node: u64,
        file: &FileNode,
        content: &mut Option<File>,
        size: u64,
    ) -> Result<(), Errno> {
        if size == 0 && content.is_none() {
            *content = Some(self.staging.file().map_err(|error| errno(&error))?);
        }
        self.localize(node, file, content).await?;
        let Some(disk) = content.as_ref() else { return Err(Errno::IO) };
        if size > MAX_FILE {
            return Err(Errno::FBIG);
        }
        let before = file.staged();
        self.staging.resize(before, size)?;
        if let Err(error) = disk.set_len(size) {
            self.staging.resize(size, before)?;
            return Err(errno(&error));
        }
        let mut state = file.state();
        state.local = Some((size, SystemTime::now()));
        state.dirty = true;
        state.failed = false;
        Ok(())
    }

    pub(super) async fn set_attributes(
        &self,
        node: u64,
        size: Option<u64>,
        handle: Option<u64>,
        mtime: Option<(u64, u32)>,
    ) -> Answer {
        if self.tree().is_folder(node) {
            return self.attributes(node).map(Reply::Attributes);
        }
        let file = self.file(node)?;
        if let Some(size) = size {
            if let Some(handle) = handle {
                self.handles.file(handle)?;
            }
            self.refresh(node, &file).await?;
            file.state().opens += 1;
            let mut content = file.content.lock().await;
            let mut resized = self.resize(node, &file, &mut content, size).await;
            drop(content);
            if resized.is_ok() && handle.is_none() {
                resized = self.persist(node, &file).await;
            }
            self.let_go(node, &file).await;
            resized?;
        }
        // Times are the store's; one of a file that is being written is kept until it is stored.
        if let (Some((seconds, nanoseconds)), Some(local)) = (mtime, &mut file.state().local) {
            let since = Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds.into());
            local.1 = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(local.1);
        }
        self.get_attributes(node).await
    }

    pub(super) async fn sync(&self, handle: u64) -> Answer {
        let handle = self.handles.file(handle)?;
        self.persist(handle.node, &handle.file).await?;
        Ok(Reply::Empty)
    }

    pub(super) async fn release(&self, handle: u64) -> Answer {
        if let Some(handle) = self.handles.close_file(handle) {
            self.let_go(handle.node, &handle.file).await;
        }
        Ok(Reply::Empty)
    }

    /// One opener less. After the last one the store has it, or nobody does.
    async fn let_go(&self, node: u64, file: &FileNode) {
        let mut was_refused = false;
        let mut content = loop {
            let content = file.content.lock().await;
            if file.close_one(was_refused) {
                break content;
            }
            drop(content);
            // Written by memory after the last close; there is nobody left to tell but the warden.
            was_refused = self.persist(node, file).await.is_err();
        };
        let mut state = file.state();
        if state.opens > 0 {
            return;
        }
        let size = state.local.map_or(0, |(size, _)| size);
        let mut is_kept = false;
        if state.dirty && !state.unlinked {
            drop(state);
            is_kept = self.keep(node, content.as_ref(), size);
            state = file.state();
        }
        if state.dirty {
            // The kernel has pages of what was written, and the store has not: whoever opens it next reads anew.
            state.in_kernel = None;
        }
        *content = None;
        if !is_kept {
            // What gets shorter is always allowed.
            let _ = self.staging.resize(size, 0);
        }
        state.local = None;
        state.dirty = false;
        state.failed = false;
        let never_stored = state.stored.is_none();
        drop(state);
        if never_stored && let Ok((folder, name)) = self.parent_and_name(node) {
            self.tree().unlink(folder, &name);
            self.folders().not_pending(folder, &name);
        }
    }

    /// Has the store hold what was written.
    pub(super) async fn persist(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        if !file.state().dirty {
            return Ok(());
        }
        let _still = self.moving.read().await;
        self.persist_unmoved(node, file).await
    }

    /// The same, for whoever knows that no folder is moved meanwhile.
    pub(super) async fn persist_unmoved(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        let content = file.content.lock().await;
        {
            let state = file.state();
            if !state.dirty || state.unlinked {
                return Ok(());
            }
        }
        let Some(disk) = content.as_ref() else { return Err(Errno::IO) };
        self.upload(node, file, disk).await
    }

    /// Keeps what somebody has open, before the store loses it.
    pub(super) async fn preserve(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        if file.state().opens == 0 {
            return Ok(());
        }
        let mut content = file.content.lock().await;
        self.localize(node, file, &mut content).await
    }
}

fn read_local(file: &File, offset: u64, size: u32) -> Result<Bytes, Errno> {
    let mut data = vec![0; size as usize];
    let mut filled = 0;
    while filled < data.len() {
        match file.read_at(&mut data[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) => return Err(errno(&error)),
        }
    }
    data.truncate(filled);
    Ok(data.into())
}

#[cfg(test)]
mod tests;
