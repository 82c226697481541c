//! Names in folders: one that is looked for, or all of them, page by page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::folders::{Entry, FolderListing, LookupMethod, MAX_LISTED};
use super::tree::ROOT;
use super::{Answer, Fs};
use crate::fuse::abi::{FolderReply, Reply};
use crate::store::{ListPage, relative_name};

const PAGE: u32 = 1000;
/// Pages of one folder before a store is taken to go on for ever.
const MAX_PAGES: u32 = 20_000;
/// Pages with nothing on them, one after the other.
const MAX_EMPTY: u32 = 100;
/// Entries of a folder that come with their attributes; the kernel keeps a node for each of them.
const MAX_INTRODUCED: u64 = 20_000;

/// A page, with what cannot be shown left out.
#[derive(Debug, Default)]
struct PageNames {
    entries: BTreeMap<Arc<str>, Entry>,
    marker: bool,
}

impl Fs {
    fn names(&self, prefix: &str, page: ListPage) -> PageNames {
        let mut names = PageNames::default();
        for (key, meta) in page.objects {
            if key == prefix {
                names.marker = true;
            } else if let Some(name) = relative_name(prefix, &key) {
                names.entries.insert(name.into(), Entry::File(meta));
            } else {
                self.counters.left_out();
            }
        }
        // A folder hides a file of the same name: what is in it could not be reached otherwise.
        for key in page.folders {
            match key.strip_suffix('/').and_then(|key| relative_name(prefix, key)) {
                Some(name) => drop(names.entries.insert(name.into(), Entry::Folder)),
                None => self.counters.left_out(),
            }
        }
        names
    }

    /// What the store has under a name.
    pub(super) async fn find(&self, folder: u64, name: &str) -> Result<Option<Entry>, Errno> {
        let lookup_method = self.folders().lookup_method(folder, name);
        let pages = match lookup_method {
            LookupMethod::Known(entry) => return Ok(entry),
            LookupMethod::ByName => return self.find_by_name(folder, name).await,
            LookupMethod::OnePage => 1,
            LookupMethod::AllPages => u32::try_from(MAX_LISTED).unwrap_or(u32::MAX) / PAGE,
        };
        let gate = usize::try_from(folder % 16).unwrap_or(0);
        let _gate = self.gates[gate].lock().await;
        // Whoever held the gate may have fetched it.
        if let Some(listing) = self.folders().listing(folder) {
            return Ok(listing.entries.get(name).cloned());
        }
        for _ in 0..3 {
            let begun = self.folders().begin_fetch(folder);
            let begin = Instant::now();
            let Some(listing) = self.list_whole(folder, pages).await? else {
                self.folders().is_large(folder, pages > 1);
                return self.find_by_name(folder, name).await;
            };
            // If it was changed meanwhile, what was fetched may be of before.
            if self.folders().end_fetch(folder, begun, &listing, begin.elapsed()) {
                return Ok(listing.entries.get(name).cloned());
            }
        }
        self.find_by_name(folder, name).await
    }

    /// All of a folder, if it has no more than so many pages.
    async fn list_whole(&self, folder: u64, pages: u32) -> Result<Option<FolderListing>, Errno> {
        let prefix = self.folder_key(folder)?;
        let mut listing = FolderListing::default();
        let mut token = None;
        for _ in 0..pages {
            let page = self.store.list(&prefix, false, token.as_deref(), PAGE).await;
            let mut page = page.map_err(|fault| fault.errno())?;
            token = page.next.take();
            let names = self.names(&prefix, page);
            listing.entries.extend(names.entries);
            listing.marker |= names.marker;
            if token.is_none() {
                return Ok(Some(listing));
            }
        }
        Ok(None)
    }

    async fn find_by_name(&self, folder: u64, name: &str) -> Result<Option<Entry>, Errno> {
        let key = self.key_in(folder, name)?;
        let below = format!("{key}/");
        let (file, inside) =
            tokio::join!(self.store.head(&key), self.store.list(&below, true, None, 1));
        let inside = inside.map_err(|fault| fault.errno())?;
        if inside.objects.iter().any(|(key, _)| key.starts_with(&below)) {
            return Ok(Some(Entry::Folder));
        }
        let file = file.map_err(|fault| fault.errno())?;
        Ok(file.map(Entry::File))
    }

    pub(super) fn open_folder(&self, node: u64) -> Answer {
        if !self.tree().is_folder(node) {
            return Err(Errno::STALE);
        }
        let handle = self.handles.open_folder(FolderStream::new(node));
        Ok(Reply::Opened { handle, flags: 0 })
    }

    pub(super) async fn read_folder(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
    ) -> Answer {
        let stream = self.handles.folder(handle)?;
        let mut stream = stream.lock().await;
        let mut reply = FolderReply::new(size, plus);
        let mut offset = offset;
        for name in [&b"."[..], b".."].into_iter().skip(usize::try_from(offset).unwrap_or(2).min(2))
        {
            if !reply.fits(name) {
                return Ok(Reply::Folder(reply));
            }
            offset += 1;
            reply.push(name, offset, true, None);
        }
        if offset < stream.base {
            *stream = FolderStream::new(stream.node);
        }
        loop {
            let skip = usize::try_from(offset - stream.base).unwrap_or(usize::MAX);
            if skip < stream.page.len() {
                self.put_entries(&stream, skip, &mut reply)?;
                return Ok(Reply::Folder(reply));
            }
            if !self.next_page(&mut stream).await? {
                return Ok(Reply::Folder(reply));
            }
        }
    }

    fn put_entries(
        &self,
        stream: &FolderStream,
        skip: usize,
        reply: &mut FolderReply,
    ) -> Result<(), Errno> {
        let from = stream.base + skip as u64;
        for (at, (name, entry)) in (from..).zip(&stream.page[skip..]) {
            if !reply.fits(name.as_bytes()) {
                break;
            }
            let with_attributes = reply.plus() && at < MAX_INTRODUCED;
            let attributes = match entry {
                _ if !with_attributes => None,
                ListedEntry::Stored(entry) => {
                    Some(self.introduce(stream.node, name, entry, stream.requested_at)?)
                }
                ListedEntry::Pending => None,
            };
            let folder = matches!(entry, ListedEntry::Stored(Entry::Folder));
            reply.push(name.as_bytes(), at + 1, folder, attributes.as_ref());
        }
        Ok(())
    }

    /// Goes on to the next page; whether there is one.
    async fn next_page(&self, stream: &mut FolderStream) -> Result<bool, Errno> {
        // Whoever waits may be interrupted: the stream stays where it is until the page is there.
        let token = match &stream.next {
            NextPage::End => return Ok(false),
            NextPage::Pending => {
                stream.next = NextPage::End;
                let pending = self.folders().all_pending(stream.node);
                stream.turn(pending.into_iter().map(|name| (name, ListedEntry::Pending)));
                return Ok(true);
            }
            NextPage::Begin => {
                stream.requested_at = Instant::now();
                let known = self.folders().listing(stream.node).map(|known| known.entries.clone());
                if let Some(entries) = known {
                    stream.collected = None;
                    stream.next = NextPage::Pending;
                    stream
                        .turn(entries.into_iter().map(|(name, e)| (name, ListedEntry::Stored(e))));
                    return Ok(true);
                }
                let begun = self.folders().begin_fetch(stream.node);
                stream.collected = Some(CollectedListing {
                    listing: FolderListing::default(),
                    begun,
                    begin: Instant::now(),
                });
                None
            }
            NextPage::Token(token) => Some(token.clone()),
        };
        let fetched = self.fetch_page(stream, token.as_deref()).await;
        if fetched.is_err() {
            stream.collected = None;
        }
        fetched.map(|()| true)
    }

    async fn fetch_page(
        &self,
        stream: &mut FolderStream,
        token: Option<&str>,
    ) -> Result<(), Errno> {
        let prefix = self.folder_key(stream.node)?;
        let requested_at = Instant::now();
        let page = self.store.list(&prefix, false, token, PAGE).await;
        let mut page = page.map_err(|fault| fault.errno())?;
        stream.requested_at = requested_at;
        let next = page.next.take();
        let names = self.names(&prefix, page);
        stream.pages += 1;
        stream.empty = if names.entries.is_empty() { stream.empty + 1 } else { 0 };
        let endless = stream.pages > MAX_PAGES || stream.empty > MAX_EMPTY;
        if next.is_some() && (endless || next.as_deref() == token) {
            return Err(Errno::OVERFLOW);
        }
        if let Some(CollectedListing { listing, .. }) = &mut stream.collected {
            listing.marker |= names.marker;
            listing.entries.extend(names.entries.iter().map(|(n, e)| (Arc::clone(n), e.clone())));
            if listing.entries.len() > MAX_LISTED {
                stream.collected = None;
                self.folders().is_large(stream.node, true);
            }
        }
        stream.next = match next {
            Some(token) => NextPage::Token(token),
            None => {
                if let Some(CollectedListing { listing, begun, begin }) = stream.collected.take() {
                    self.folders().end_fetch(stream.node, begun, &listing, begin.elapsed());
                }
                NextPage::Pending
            }
        };
        stream.turn(
            names.entries.into_iter().map(|(name, entry)| (name, ListedEntry::Stored(entry))),
        );
        Ok(())
    }

    /// Whether nothing is in a folder but the object that says it is there.
    pub(super) async fn is_empty(&self, folder: u64) -> Result<bool, Errno> {
        if !self.folders().all_pending(folder).is_empty() {
            return Ok(false);
        }
        let prefix = self.folder_key(folder)?;
        let page = self.store.list(&prefix, true, None, 2).await.map_err(|f| f.errno())?;
        Ok(page.objects.iter().all(|(key, _)| *key == prefix))
    }

    /// A folder out of which the last thing went is still a folder.
    pub(super) async fn keep_folder(&self, folder: u64) -> Result<(), Errno> {
        if folder == ROOT {
            return Ok(());
        }
        if let Some(listing) = self.folders().listing(folder)
            && (listing.marker || !listing.entries.is_empty())
        {
            return Ok(());
        }
        let prefix = self.folder_key(folder)?;
        let page = self.store.list(&prefix, true, None, 1).await.map_err(|f| f.errno())?;
        if page.objects.is_empty() {
            self.store.put(&prefix, bytes::Bytes::new()).await.map_err(|f| f.errno())?;
        }
        self.folders().has_marker(folder);
        Ok(())
    }
}

#[derive(Debug)]
enum ListedEntry {
    Stored(Entry),
    /// Created, and not in the store yet.
    Pending,
}

#[derive(Debug)]
enum NextPage {
    Begin,
    Token(String),
    Pending,
    End,
}

/// A folder that somebody reads, of which one page is held.
#[derive(Debug)]
pub(super) struct FolderStream {
    node: u64,
    page: Vec<(Arc<str>, ListedEntry)>,
    /// When the store was asked for it.
    requested_at: Instant,
    /// The offset of the first entry of the page; the first two are `.` and `..`.
    base: u64,
    next: NextPage,
    pages: u32,
    empty: u32,
    /// What has been read so far, while it is worth remembering.
    collected: Option<CollectedListing>,
}

#[derive(Debug)]
struct CollectedListing {
    listing: FolderListing,
    begun: u64,
    begin: Instant,
}

impl FolderStream {
    fn new(node: u64) -> Self {
        let (page, requested_at, collected) = (Vec::new(), Instant::now(), None);
        Self {
            node,
            page,
            requested_at,
            base: 2,
            next: NextPage::Begin,
            pages: 0,
            empty: 0,
            collected,
        }
    }

    fn turn(&mut self, page: impl Iterator<Item = (Arc<str>, ListedEntry)>) {
        self.base += self.page.len() as u64;
        self.page = page.collect();
    }
}
