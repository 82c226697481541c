//! Where the file of a pack is: whoever collects garbage puts it aside, and whoever needs it brings it back.

use std::path::{Path, PathBuf};

use super::chunk::ChunkId;
use super::fail_points::{self, FailPoint};
use super::pack::pack_name;
use super::use_lock;
use crate::Result;

/// The folders a pack may be in.
#[derive(Debug, Clone)]
pub(crate) struct PackFolders {
    /// Where packs are, and where those that were put aside are.
    folders: [PathBuf; 2],
    /// The lock under which they are moved; nothing where the caller holds it.
    lock: Option<PathBuf>,
}

impl PackFolders {
    pub(crate) fn new(packs: PathBuf, aside: PathBuf, lock: PathBuf) -> Self {
        Self { folders: [packs, aside], lock: Some(lock) }
    }

    /// The same for somebody who holds the store's lock.
    pub(crate) fn locked(self) -> Self {
        Self { lock: None, ..self }
    }

    /// What `look` finds at the place where a pack is; `NotFound` if it is nowhere.
    ///
    /// A pack can be moved from the second folder to the first between the looks at them, and the other way round
    /// before the next look. What was not found is therefore looked for under the lock, where nobody moves anything.
    pub(crate) fn find<T>(&self, id: ChunkId, look: impl Fn(&Path) -> Result<T>) -> Result<T> {
        let found = self.look(id, &look);
        match &self.lock {
            Some(lock) if is_missing(&found) => {
                let _lock = use_lock::lock(lock)?;
                self.look(id, &look)
            }
            _ => found,
        }
    }

    fn look<T>(&self, id: ChunkId, look: impl Fn(&Path) -> Result<T>) -> Result<T> {
        let [usual, aside] = self.folders.each_ref().map(|folder| folder.join(pack_name(id)));
        let found = look(&usual);
        if !is_missing(&found) {
            return found;
        }
        fail_points::fail_point(FailPoint::NotInItsPlace);
        look(&aside)
    }
}

fn is_missing<T>(found: &Result<T>) -> bool {
    matches!(found, Err(error) if error.is_not_found())
}
