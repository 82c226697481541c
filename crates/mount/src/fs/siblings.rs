//! Small files that are read one after the other, as their folder lists them, are fetched before
//! they are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::blocks::{AccessPattern, Object};
use super::{Fs, lock};

/// The largest file that is fetched for being next.
const SMALL: u64 = 256 << 10;
/// Files in a row before more are expected.
const STREAK: u32 = 2;
/// How far ahead, in files.
const WINDOW: usize = 32;
const MAX_FOLDERS: usize = 256;

#[derive(Debug)]
struct FolderReads {
    last: Arc<str>,
    streak: u32,
    /// The last file that was fetched ahead.
    reached: Option<Arc<str>>,
}

/// Where in each folder somebody reads.
#[derive(Debug, Default)]
pub(super) struct SequentialFiles(Mutex<HashMap<u64, FolderReads>>);

impl Fs {
    /// Takes note that a small file is read from its beginning.
    pub(super) fn note_small_read(&self, node: u64, size: u64) {
        if size > SMALL {
            return;
        }
        let Ok((folder, name)) = self.parent_and_name(node) else { return };
        let Ok(prefix) = self.folder_key(folder) else { return };
        let Some(from) = self.read_ahead_from(folder, &name) else { return };
        let following = self.folders().following(folder, &from, WINDOW);
        let Some((last, _)) = following.last() else { return };
        if let Some(reads) = lock(&self.siblings.0).get_mut(&folder) {
            reads.reached = Some(Arc::clone(last));
        }
        for (name, meta) in
            following.into_iter().filter(|(_, meta)| (1..=SMALL).contains(&meta.size))
        {
            let object = Object::new(&self.store, format!("{prefix}{name}"), meta);
            self.blocks.fetch(&object, 0, 1, AccessPattern::Random);
        }
    }

    /// The name after which to fetch, if it is time to.
    fn read_ahead_from(&self, folder: u64, name: &Arc<str>) -> Option<Arc<str>> {
        let mut all_reads = lock(&self.siblings.0);
        let Some(reads) = all_reads.get_mut(&folder) else {
            if all_reads.len() >= MAX_FOLDERS {
                all_reads.clear();
            }
            all_reads
                .insert(folder, FolderReads { last: Arc::clone(name), streak: 0, reached: None });
            return None;
        };
        if reads.last == *name {
            return None;
        }
        let next = self.folders().following(folder, &reads.last, 4);
        let goes_on = next.iter().any(|(next, _)| next == name);
        reads.streak = if goes_on { reads.streak + 1 } else { 0 };
        reads.last = Arc::clone(name);
        if !goes_on {
            reads.reached = None;
        }
        if reads.streak < STREAK {
            return None;
        }
        let Some(reached) = reads.reached.clone().filter(|reached| reached > name) else {
            return Some(Arc::clone(name));
        };
        // Half of what was fetched ahead is left: time for more.
        let left = self.folders().following(folder, name, WINDOW / 2);
        left.iter().any(|(next, _)| *next == reached).then_some(reached)
    }
}
