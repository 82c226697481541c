//! What the store said about folders, for as long as it is believed, kept true to our own changes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::ObjectMeta;

/// The most names that are remembered of one folder, and of all.
pub(super) const MAX_LISTED: usize = 20_000;
const MAX_TOTAL: usize = 60_000;
/// Lookups in a folder of many pages, after which all of it is fetched.
const WORTH_LISTING: u32 = 8;
/// How long a folder counts as too large.
const LARGE_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    Folder,
    File(ObjectMeta),
}

/// A whole folder.
#[derive(Debug, Clone, Default)]
pub(super) struct FolderListing {
    pub(super) entries: BTreeMap<Arc<str>, Entry>,
    /// Whether the folder has an object of its own, and is there without anything in it.
    pub(super) marker: bool,
}

#[derive(Debug)]
struct CachedListing {
    listing: FolderListing,
    until: Instant,
    used: u64,
}

/// What is known of a folder that does not fit on a page.
#[derive(Debug)]
struct LargeFolder {
    since: Instant,
    lookups: u32,
    /// Even all of it was fetched, and is too much.
    hopeless: bool,
}

#[derive(Debug)]
pub(super) struct Folders {
    ttl: Duration,
    known: HashMap<u64, CachedListing>,
    large: HashMap<u64, LargeFolder>,
    /// How often each folder was changed by us.
    changes: HashMap<u64, u64>,
    /// Files that were created and are not in the store yet.
    pending: HashMap<u64, BTreeSet<Arc<str>>>,
    total: usize,
    clock: u64,
}

/// How a folder is best asked for a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookupMethod {
    Known(Option<Entry>),
    OnePage,
    AllPages,
    ByName,
}

impl Folders {
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            known: HashMap::new(),
            large: HashMap::new(),
            changes: HashMap::new(),
            pending: HashMap::new(),
            total: 0,
            clock: 0,
        }
    }

    /// All of a folder, if it is known.
    pub(super) fn listing(&mut self, folder: u64) -> Option<&FolderListing> {
        self.clock += 1;
        let known = self.known.get_mut(&folder)?;
        if known.until < Instant::now() {
            self.forget(folder);
            return None;
        }
        known.used = self.clock;
        self.known.get(&folder).map(|known| &known.listing)
    }

    pub(super) fn lookup_method(&mut self, folder: u64, name: &str) -> LookupMethod {
        if let Some(listing) = self.listing(folder) {
            return LookupMethod::Known(listing.entries.get(name).cloned());
        }
        let Some(large) = self.large.get_mut(&folder) else { return LookupMethod::OnePage };
        if large.since.elapsed() > LARGE_FOR {
            self.large.remove(&folder);
            return LookupMethod::OnePage;
        }
        large.lookups += 1;
        if large.hopeless || large.lookups < WORTH_LISTING {
            LookupMethod::ByName
        } else {
            LookupMethod::AllPages
        }
    }

    pub(super) fn is_large(&mut self, folder: u64, hopeless: bool) {
        self.large.insert(folder, LargeFolder { since: Instant::now(), lookups: 0, hopeless });
    }

    /// To be called before a folder is fetched; what it returns belongs to `end_fetch`.
    pub(super) fn begin_fetch(&self, folder: u64) -> u64 {
        self.changes.get(&folder).copied().unwrap_or(0)
    }

    /// Keeps what was fetched, unless it may be older than a change of ours; whether it was kept.
    pub(super) fn end_fetch(
        &mut self,
        folder: u64,
        begun: u64,
        listing: &FolderListing,
        took: Duration,
    ) -> bool {
        let current = self.begin_fetch(folder) == begun;
        if current {
            self.insert(folder, listing.clone(), took);
        }
        current
    }

    /// A folder that takes long to list is believed for longer.
    fn insert(&mut self, folder: u64, listing: FolderListing, took: Duration) {
        self.forget(folder);
        self.clock += 1;
        self.total += listing.entries.len();
        let until = Instant::now() + self.ttl.max(took * 10);
        self.known.insert(folder, CachedListing { listing, until, used: self.clock });
        while self.total > MAX_TOTAL && self.known.len() > 1 {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.forget(oldest);
        }
    }

    pub(super) fn forget(&mut self, folder: u64) {
        if let Some(known) = self.known.remove(&folder) {
            self.total -= known.listing.entries.len();
        }
    }

    pub(super) fn forget_everything(&mut self) {
        self.known.clear();
        self.total = 0;
    }

    /// A folder that we made: nothing is in it.
    pub(super) fn made(&mut self, folder: u64) {
        let listing = FolderListing { marker: true, ..FolderListing::default() };
        self.insert(folder, listing, Duration::ZERO);
    }

    fn changed(&mut self, folder: u64) -> Option<&mut FolderListing> {
        *self.changes.entry(folder).or_default() += 1;
        self.known.get_mut(&folder).map(|known| &mut known.listing)
    }

    /// A name is in the store now.
    pub(super) fn stored(&mut self, folder: u64, name: &Arc<str>, entry: Entry) {
        self.not_pending(folder, name);
        if let Some(listing) = self.changed(folder)
            && listing.entries.insert(Arc::clone(name), entry).is_none()
        {
            self.total += 1;
        }
    }

    /// A name is not in the store any more.
    pub(super) fn removed(&mut self, folder: u64, name: &str) {
        self.not_pending(folder, name);
        if let Some(listing) = self.changed(folder)
            && listing.entries.remove(name).is_some()
        {
            self.total -= 1;
        }
    }

    pub(super) fn has_marker(&mut self, folder: u64) {
        if let Some(listing) = self.changed(folder) {
            listing.marker = true;
        }
    }

    pub(super) fn pending(&mut self, folder: u64, name: &Arc<str>) {
        self.pending.entry(folder).or_default().insert(Arc::clone(name));
    }

    pub(super) fn not_pending(&mut self, folder: u64, name: &str) {
        if let Some(names) = self.pending.get_mut(&folder) {
            names.remove(name);
            if names.is_empty() {
                self.pending.remove(&folder);
            }
        }
    }

    pub(super) fn all_pending(&self, folder: u64) -> Vec<Arc<str>> {
        self.pending.get(&folder).into_iter().flatten().cloned().collect()
    }

    /// Names that follow another one, if the folder is known.
    pub(super) fn following(
        &self,
        folder: u64,
        name: &str,
        count: usize,
    ) -> Vec<(Arc<str>, ObjectMeta)> {
        use std::ops::Bound;
        let Some(known) = self.known.get(&folder) else { return Vec::new() };
        let range = (Bound::Excluded(name), Bound::Unbounded);
        let after = known.listing.entries.range::<str, _>(range).take(count);
        let files = after.filter_map(|(name, entry)| match entry {
            Entry::File(meta) => Some((Arc::clone(name), meta.clone())),
            Entry::Folder => None,
        });
        files.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders() -> Folders {
        Folders::new(Duration::from_secs(60))
    }

    #[test]
    fn believes_no_listing_that_is_older_than_a_change() {
        let mut folders = folders();
        let begun = folders.begin_fetch(1);
        folders.stored(1, &"new".into(), Entry::Folder);
        assert!(!folders.end_fetch(1, begun, &FolderListing::default(), Duration::ZERO));
        assert_eq!(folders.lookup_method(1, "new"), LookupMethod::OnePage);
        let begun = folders.begin_fetch(1);
        assert!(folders.end_fetch(1, begun, &FolderListing::default(), Duration::ZERO));
        assert_eq!(folders.lookup_method(1, "new"), LookupMethod::Known(None));
        folders.stored(1, &"new".into(), Entry::Folder);
        assert_eq!(folders.lookup_method(1, "new"), LookupMethod::Known(Some(Entry::Folder)));
        folders.removed(1, "new");
        assert_eq!(
            (folders.lookup_method(1, "new"), folders.total),
            (LookupMethod::Known(None), 0)
        );
    }

    #[test]
    fn lists_a_large_folder_once_it_is_worth_it() {
        let mut folders = folders();
        folders.is_large(1, false);
        let methods: Vec<_> = (0..WORTH_LISTING).map(|_| folders.lookup_method(1, "x")).collect();
        assert_eq!(
            (methods.first(), methods.last()),
            (Some(&LookupMethod::ByName), Some(&LookupMethod::AllPages))
        );
        folders.is_large(1, true);
        assert!((0..100).all(|_| folders.lookup_method(1, "x") == LookupMethod::ByName));
    }

    #[test]
    fn holds_a_bounded_number_of_names() {
        let mut folders = folders();
        for folder in 0..10 {
            let entries = (0..10_000).map(|n| (format!("{n}").into(), Entry::Folder)).collect();
            folders.end_fetch(folder, 0, &FolderListing { entries, marker: false }, Duration::ZERO);
        }
        assert!(folders.total <= MAX_TOTAL, "{}", folders.total);
        assert!(folders.listing(9).is_some() && folders.listing(0).is_none());
    }
}
