//! Names that come, go and move.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use rustix::io::Errno;

use super::blocks::Object;
use super::file::FileNode;
use super::folders::Entry;
use super::{Answer, Fs, errno, text};
use crate::fuse::abi::{RENAME_NOREPLACE, Reply};
use crate::store::ObjectMeta;

/// The most objects that a folder has which is renamed as one.
const MAX_MOVED: usize = 100_000;
/// Copies and deletions on their way at once.
const PARALLEL: usize = 8;
const PAGE: u32 = 1000;
/// Pages of such a folder before a store is taken to go on for ever: some stores make short ones.
const MAX_PAGES: usize = 1000;

/// An object of a folder that is moved.
struct MovedObject {
    from: String,
    to: String,
    size: u64,
    version: Arc<str>,
}

/// Two ends of a rename.
struct RenameEnds<'a> {
    from: (u64, &'a str),
    to: (u64, &'a str),
}

impl Fs {
    /// What a name stands for, here or in the store.
    async fn entry(&self, folder: u64, name: &str) -> Result<Option<Entry>, Errno> {
        if let Some(file) = self.local_child(folder, name) {
            let meta = file.state().stored.clone();
            let unstored = || ObjectMeta {
                size: 0,
                mtime: std::time::SystemTime::UNIX_EPOCH,
                version: "".into(),
            };
            return Ok(Some(Entry::File(meta.unwrap_or_else(unstored))));
        }
        self.find(folder, name).await
    }

    /// A file of this name that was changed here.
    fn local_child(&self, folder: u64, name: &str) -> Option<Arc<FileNode>> {
        let tree = self.tree();
        let node = tree.node(tree.child(folder, name)?)?;
        node.file.clone().filter(|file| file.is_local())
    }

    fn path_in(&self, folder: u64, name: &str) -> String {
        match self.tree().path(folder) {
            Some(path) if !path.is_empty() => format!("{path}/{name}"),
            _ => name.to_owned(),
        }
    }

    pub(super) async fn make_folder(&self, folder: u64, name: &[u8]) -> Answer {
        let name = text(name)?;
        if self.entry(folder, name).await?.is_some() {
            return Err(Errno::EXIST);
        }
        let _still = self.moving.read().await;
        // Not before: the folder it is in may have been moved meanwhile.
        let key = format!("{}/", self.key_in(folder, name)?);
        let made = self.store.put(&key, Bytes::new()).await.map_err(|fault| fault.errno());
        let outcome = made.as_ref().map(drop).map_err(|errno| *errno);
        self.report_change("mkdir", self.path_in(folder, name), None, 0, &outcome);
        made?;
        let name: Arc<str> = name.into();
        self.folders().stored(folder, &name, Entry::Folder);
        let entry = self.introduce(folder, &name, &Entry::Folder, Instant::now())?;
        self.folders().made(entry.node);
        Ok(Reply::Entry(entry))
    }

    pub(super) async fn unlink(&self, folder: u64, name: &[u8]) -> Answer {
        let name = text(name)?;
        match self.entry(folder, name).await? {
            Some(Entry::File(_)) => {}
            Some(Entry::Folder) => return Err(Errno::ISDIR),
            None => return Err(Errno::NOENT),
        }
        let _still = self.moving.read().await;
        let path = self.path_in(folder, name);
        let removed = self.unlink_unmoved(folder, name).await;
        self.report_change("delete", path, None, 0, &removed);
        removed?;
        self.keep_folder(folder).await?;
        Ok(Reply::Empty)
    }

    async fn unlink_unmoved(&self, folder: u64, name: &str) -> Result<(), Errno> {
        let key = self.key_in(folder, name)?;
        let Some((node, file)) = self.child_file(folder, name) else {
            self.store.delete(&key).await.map_err(|fault| fault.errno())?;
            self.folders().removed(folder, name);
            return Ok(());
        };
        self.preserve(node, &file).await?;
        // Held, so that nobody stores it in between.
        let content = file.content.lock().await;
        let stored = {
            let state = file.state();
            state.stored.is_some() || state.local.is_none()
        };
        if stored {
            self.store.delete(&key).await.map_err(|fault| fault.errno())?;
        }
        self.lost_its_name(folder, name, &file);
        self.folders().removed(folder, name);
        drop(content);
        Ok(())
    }

    fn child_file(&self, folder: u64, name: &str) -> Option<(u64, Arc<FileNode>)> {
        let tree = self.tree();
        let id = tree.child(folder, name)?;
        Some((id, tree.node(id)?.file.clone()?))
    }

    fn lost_its_name(&self, folder: u64, name: &str, file: &FileNode) {
        let mut state = file.state();
        state.unlinked = true;
        state.stored = None;
        drop(state);
        self.tree().unlink(folder, name);
    }

    pub(super) async fn remove_folder(&self, folder: u64, name: &[u8]) -> Answer {
        let name = text(name)?;
        let node = self.folder_node(folder, name).await?;
        if !self.is_empty(node).await? {
            return Err(Errno::NOTEMPTY);
        }
        let _still = self.moving.read().await;
        let key = format!("{}/", self.key_in(folder, name)?);
        let removed = self.store.delete(&key).await.map_err(|fault| fault.errno());
        self.report_change("rmdir", self.path_in(folder, name), None, 0, &removed);
        removed?;
        self.tree().unlink(folder, name);
        self.folders().forget(node);
        self.folders().removed(folder, name);
        self.keep_folder(folder).await?;
        Ok(Reply::Empty)
    }

    /// The node of a folder, which may be one that the kernel forgot.
    async fn folder_node(&self, folder: u64, name: &str) -> Result<u64, Errno> {
        let known = self.tree().child(folder, name);
        if let Some(node) = known.filter(|node| self.tree().is_folder(*node)) {
            return Ok(node);
        }
        match self.entry(folder, name).await? {
            Some(Entry::Folder) => {
                let mut tree = self.tree();
                let node = tree.ensure(folder, &name.into(), true);
                tree.record().map_err(|error| errno(&error))?;
                Ok(node)
            }
            Some(Entry::File(_)) => Err(Errno::NOTDIR),
            None => Err(Errno::NOENT),
        }
    }

    pub(super) async fn rename(
        &self,
        folder: u64,
        name: &[u8],
        new_folder: u64,
        new_name: &[u8],
        flags: u32,
    ) -> Answer {
        if flags & !RENAME_NOREPLACE != 0 {
            return Err(Errno::INVAL);
        }
        let ends = RenameEnds { from: (folder, text(name)?), to: (new_folder, text(new_name)?) };
        self.key_in(new_folder, ends.to.1)?;
        let requested_at = Instant::now();
        let source = self.entry(folder, ends.from.1).await?.ok_or(Errno::NOENT)?;
        let target = self.entry(new_folder, ends.to.1).await?;
        if flags & RENAME_NOREPLACE != 0 && target.is_some() {
            return Err(Errno::EXIST);
        }
        let (path, to) = (self.path_in(folder, ends.from.1), self.path_in(new_folder, ends.to.1));
        let size = if let Entry::File(meta) = &source { meta.size } else { 0 };
        let moved = match (&source, &target) {
            (Entry::File(_), Some(Entry::Folder)) => Err(Errno::ISDIR),
            (Entry::Folder, Some(Entry::File(_))) => Err(Errno::NOTDIR),
            (Entry::File(meta), _) => {
                let _still = self.moving.read().await;
                self.move_file(&ends, meta, requested_at, target.is_some()).await
            }
            (Entry::Folder, _) => {
                let _alone = self.moving.write().await;
                self.move_folder(&ends, target.is_some()).await
            }
        };
        self.report_change("rename", path, Some(to), size, &moved);
        moved?;
        self.keep_folder(folder).await?;
        Ok(Reply::Empty)
    }

    /// Moves a file, of which the store said `meta` to whoever asked at `requested_at`. If the store refuses, both names are what
    /// they were.
    async fn move_file(
        &self,
        ends: &RenameEnds<'_>,
        meta: &ObjectMeta,
        requested_at: Instant,
        replaces: bool,
    ) -> Result<(), Errno> {
        let replaced = if replaces { self.child_file(ends.to.0, ends.to.1) } else { None };
        if let Some((node, file)) = &replaced {
            self.preserve(*node, file).await?;
        }
        // Held until the store has the other in its place, so that nobody stores it in between.
        let _replaced_content = match &replaced {
            Some((_, file)) => Some(file.content.lock().await),
            None => None,
        };
        let node = {
            let mut tree = self.tree();
            tree.ensure(ends.from.0, &ends.from.1.into(), false)
        };
        let file = self.file(node)?;
        self.preserve(node, &file).await?;
        let content = file.content.lock().await;
        let name: Arc<str> = ends.to.1.into();
        let from = self.key_in(ends.from.0, ends.from.1)?;
        let unsaved = file.state().dirty;
        if let (true, Some(disk)) = (unsaved, content.as_ref()) {
            let stored = file.state().stored.is_some();
            let path = self.path_in(ends.to.0, ends.to.1);
            let meta = self.upload_as(&file, disk, path).await?;
            self.give_name(node, ends, replaced.as_ref());
            self.folders().not_pending(ends.from.0, ends.from.1);
            self.folders().stored(ends.to.0, &name, Entry::File(meta));
            if stored {
                self.store.delete(&from).await.map_err(|fault| fault.errno())?;
            }
        } else {
            // Somebody may have stored it since: a copy of that is as long as that.
            let size = file.meta_since(requested_at).map_or(meta.size, |heard| heard.size);
            // Programs that are told so copy it themselves.
            if size > self.store.largest_copy() {
                return Err(Errno::XDEV);
            }
            let to = self.key_in(ends.to.0, ends.to.1)?;
            let copy = self.store.copy(&from, &to, size).await;
            let copy = copy.map_err(|fault| fault.errno())?;
            if let Err(fault) = self.store.delete(&from).await {
                // Both names have it now, whatever was known of the second.
                self.folders().forget(ends.to.0);
                return Err(fault.errno());
            }
            file.was_given(&copy);
            self.give_name(node, ends, replaced.as_ref());
            self.folders().stored(ends.to.0, &name, Entry::File(copy));
        }
        self.folders().removed(ends.from.0, ends.from.1);
        self.tree().record().map_err(|error| errno(&error))
    }

    /// Gives a file the name that the store has it under now, and takes it from what had it.
    fn give_name(&self, node: u64, ends: &RenameEnds<'_>, replaced: Option<&(u64, Arc<FileNode>)>) {
        if let Some((_, file)) = replaced {
            self.lost_its_name(ends.to.0, ends.to.1, file);
        }
        self.tree().rename(node, ends.to.0, &ends.to.1.into());
    }

    /// Copies everything, and removes it where it was only when all of it was copied.
    async fn move_folder(&self, ends: &RenameEnds<'_>, replaces: bool) -> Result<(), Errno> {
        let node = self.folder_node(ends.from.0, ends.from.1).await?;
        if replaces {
            let target = self.folder_node(ends.to.0, ends.to.1).await?;
            if !self.is_empty(target).await? {
                return Err(Errno::NOTEMPTY);
            }
            self.tree().unlink(ends.to.0, ends.to.1);
            self.folders().forget(target);
        }
        let files = self.tree().files_below(node);
        for (id, file) in files {
            self.persist_unmoved(id, &file).await?;
        }
        let from = format!("{}/", self.key_in(ends.from.0, ends.from.1)?);
        let to = format!("{}/", self.key_in(ends.to.0, ends.to.1)?);
        // Somebody else may have made it since its folder was listed: copies would come in the place of what is in there.
        let there = self.store.list(&to, true, None, 2).await.map_err(|fault| fault.errno())?;
        if there.objects.iter().any(|(key, _)| *key != to) {
            self.folders().forget(ends.to.0);
            return Err(Errno::NOTEMPTY);
        }
        let objects = self.everything_below(&from, &to).await?;
        let copies = match self.copy_all(&objects).await {
            Ok(copies) => copies,
            Err(errno) => {
                // What was copied must not look like a folder that somebody made.
                let copies = objects.iter().map(|object| object.to.as_str()).collect();
                let _ = self.delete_all(copies).await;
                return Err(errno);
            }
        };
        let name: Arc<str> = ends.to.1.into();
        // Whoever reads goes on with the copies, before there is nothing else.
        self.read_from_copies(node, (ends.to.0, &name), &objects, &copies);
        let deleted =
            self.delete_all(objects.iter().map(|object| object.from.as_str()).collect()).await;
        if deleted.is_err() {
            // Some have both names now, and others one of them.
            self.tree().rename(node, ends.from.0, &ends.from.1.into());
            self.folders().forget_everything();
            for (_, file) in self.tree().files_below(node) {
                file.invalidate();
            }
            return deleted;
        }
        self.folders().removed(ends.from.0, ends.from.1);
        self.folders().stored(ends.to.0, &name, Entry::Folder);
        // Copies have versions of their own.
        self.folders().forget_everything();
        self.tree().record().map_err(|error| errno(&error))
    }

    /// Gives a folder the name that its copy has, and whatever is known or open of the files below their copies.
    fn read_from_copies(
        &self,
        folder: u64,
        to: (u64, &Arc<str>),
        objects: &[MovedObject],
        copies: &[ObjectMeta],
    ) {
        let copies: HashMap<_, _> = objects
            .iter()
            .zip(copies)
            .map(|(object, copy)| (object.to.as_str(), (object, copy)))
            .collect();
        // Held all the while, so that nobody opens one under its old name any more.
        let mut tree = self.tree();
        tree.rename(folder, to.0, to.1);
        for (node, file) in tree.files_below(folder) {
            let key = tree.path(node).map(|path| format!("{}{path}", self.root));
            let Some((object, copy)) = key.as_deref().and_then(|key| copies.get(key)) else {
                file.invalidate();
                continue;
            };
            file.was_moved(&object.version, copy);
            let copy = Object::new(&self.store, object.to.clone(), (*copy).clone());
            self.handles.moved(node, &object.version, copy);
        }
    }

    /// Each object below a folder, with the key it gets.
    async fn everything_below(&self, from: &str, to: &str) -> Result<Vec<MovedObject>, Errno> {
        let mut objects = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let page = self.store.list(from, true, token.as_deref(), PAGE).await;
            let page = page.map_err(|fault| fault.errno())?;
            for (key, meta) in page.objects {
                let rest = key.strip_prefix(from).ok_or(Errno::IO)?;
                // A key with such a part is another key to the server.
                let odd = rest.split('/').any(|part| part == "." || part == "..");
                let new = format!("{to}{rest}");
                if odd || new.len() > crate::store::MAX_KEY || meta.size > self.store.largest_copy()
                {
                    return Err(Errno::XDEV);
                }
                let ObjectMeta { size, version, .. } = meta;
                objects.push(MovedObject { from: key, to: new, size, version });
            }
            if objects.len() > MAX_MOVED || (page.next.is_some() && page.next == token) {
                return Err(Errno::XDEV);
            }
            token = page.next;
            if token.is_none() {
                return Ok(objects);
            }
        }
        Err(Errno::XDEV)
    }

    /// Copies all of them; the copies, in their order.
    async fn copy_all(&self, objects: &[MovedObject]) -> Result<Vec<ObjectMeta>, Errno> {
        let mut copies = Vec::with_capacity(objects.len());
        for MovedObject { from, to, size, .. } in objects {
            copies.push(async move {
                self.store.copy(from, to, *size).await.map_err(|fault| fault.errno())
            });
        }
        futures::stream::iter(copies).buffered(PARALLEL).try_collect().await
    }

    async fn delete_all(&self, keys: Vec<&str>) -> Result<(), Errno> {
        let mut deletions = Vec::with_capacity(keys.len());
        for key in keys {
            deletions
                .push(async move { self.store.delete(key).await.map_err(|fault| fault.errno()) });
        }
        futures::stream::iter(deletions).buffer_unordered(PARALLEL).try_collect().await
    }
}
