//! Small files that are read one after the other, as their folder lists them, are fetched before
//! they are asked for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::blocks::{Object, Reading};
use super::{Fs, lock};

/// The largest file that is fetched for being next.
const SMALL: u64 = 256 << 10;
/// Files in a row before more are expected.
const STREAK: u32 = 2;
/// How far ahead, in files.
const WINDOW: usize = 32;
const MAX_FOLDERS: usize = 256;

#[derive(Debug)]
struct Walk {
    last: Arc<str>,
    streak: u32,
    /// The last file that was fetched ahead.
    reached: Option<Arc<str>>,
}

/// Where in each folder somebody reads.
#[derive(Debug, Default)]
pub(super) struct Siblings(Mutex<HashMap<u64, Walk>>);

impl Fs {
    /// Takes note that a small file is read from its beginning.
    pub(super) fn note_small_read(&self, node: u64, size: u64) {
        if size > SMALL {
            return;
        }
        let Ok((folder, name)) = self.whereabouts(node) else { return };
        let Ok(prefix) = self.folder_key(folder) else { return };
        let Some(from) = self.walked(folder, &name) else { return };
        let following = self.folders().following(folder, &from, WINDOW);
        let Some((last, _)) = following.last() else { return };
        if let Some(walk) = lock(&self.siblings.0).get_mut(&folder) {
            walk.reached = Some(Arc::clone(last));
        }
        for (name, meta) in
            following.into_iter().filter(|(_, meta)| (1..=SMALL).contains(&meta.size))
        {
            let object = Object::new(&self.store, format!("{prefix}{name}"), meta);
            self.blocks.fetch(&object, 0, 1, Reading::Here);
        }
    }

    /// The name after which to fetch, if it is time to.
    fn walked(&self, folder: u64, name: &Arc<str>) -> Option<Arc<str>> {
        let mut walks = lock(&self.siblings.0);
        let Some(walk) = walks.get_mut(&folder) else {
            if walks.len() >= MAX_FOLDERS {
                walks.clear();
            }
            walks.insert(folder, Walk { last: Arc::clone(name), streak: 0, reached: None });
            return None;
        };
        if walk.last == *name {
            return None;
        }
        let next = self.folders().following(folder, &walk.last, 4);
        let goes_on = next.iter().any(|(next, _)| next == name);
        walk.streak = if goes_on { walk.streak + 1 } else { 0 };
        walk.last = Arc::clone(name);
        if !goes_on {
            walk.reached = None;
        }
        if walk.streak < STREAK {
            return None;
        }
        let Some(reached) = walk.reached.clone().filter(|reached| reached > name) else {
            return Some(Arc::clone(name));
        };
        // Half of what was fetched ahead is left: time for more.
        let left = self.folders().following(folder, name, WINDOW / 2);
        left.iter().any(|(next, _)| *next == reached).then_some(reached)
    }
}
