//! Finding files by pattern, a piece at a time.
//!
//! Links are reported where they match and never entered, so that a tree ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide_proto::files::{BATCH_BYTES, Glob};
use bastide_proto::{Fault, FaultKind};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use serde_bytes::ByteBuf;

use super::folder;
use super::pattern::{Pattern, Positions};
use super::{at, some_entries};
use crate::server::Guest;
use crate::server::beneath::{PathError, Roots, stat_at};
use crate::server::blocking::blocking;
use crate::server::call::{Inbox, Outbox, Refusal};

/// How long one piece of the work takes.
const CHUNK: Duration = Duration::from_millis(100);

/// The longest path that is reported.
const MAX_PATH: usize = 16 * 1024;

/// What folders are opened with to be looked into.
const LOOK_INTO: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// How many folders may wait to be looked into.
const MAX_WAITING: usize = 200_000;

/// A search that is under way.
pub(super) struct Search {
    base: OwnedFd,
    path: Vec<u8>,
    pattern: Pattern,
    /// Folders still to look into: the names that lead there, and where in the pattern that is.
    waiting: Vec<(Vec<Vec<u8>>, Positions)>,
    /// The folder that is being looked into.
    inside: Option<OpenFolder>,
    most: u64,
    found: u64,
}

/// A folder that is being looked into.
struct OpenFolder {
    folder: OwnedFd,
    names: Vec<Vec<u8>>,
    at: Positions,
}

impl Search {
    pub(super) fn begin(roots: &Roots, glob: &Glob, pattern: Pattern) -> Result<Self, PathError> {
        let opened = folder::open(roots, &glob.base)?;
        let waiting = vec![(Vec::new(), pattern.start())];
        let (base, path, most) = (opened.file, opened.path, glob.max);
        Ok(Self { base, path, pattern, waiting, inside: None, most, found: 0 })
    }

    /// Some more matches, and whether that was all.
    pub(super) fn some(&mut self, roots: &Roots) -> Result<(Vec<ByteBuf>, bool), Fault> {
        let until = Instant::now() + CHUNK;
        let (mut matches, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES && Instant::now() < until {
            let inside = match self.inside.take() {
                Some(inside) => Some(inside),
                None => self.next_folder(roots).map_err(|errno| self.failed(errno))?,
            };
            let Some(inside) = inside else { return Ok((matches, true)) };
            let entries = match some_entries(&inside.folder) {
                Ok(Some(entries)) => entries,
                Ok(None) | Err(Errno::NOENT) => continue,
                Err(errno) => return Err(self.failed(errno)),
            };
            for (name, kind) in entries {
                if let Some(found) = self.match_entry(&inside, name, kind)? {
                    bytes += found.len() + 8;
                    matches.push(found);
                }
            }
            self.inside = Some(inside);
        }
        Ok((matches, false))
    }

    /// Goes into the next folder that waits.
    fn next_folder(&mut self, roots: &Roots) -> Result<Option<OpenFolder>, Errno> {
        while let Some((names, at)) = self.waiting.pop() {
            match roots.open_below(&self.base, &names, LOOK_INTO) {
                Ok(folder) => return Ok(Some(OpenFolder { folder, names, at })),
                // Gone, no folder any more, or not for us: nothing to be found there.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(None)
    }

    /// Looks at one entry: whether it matches, and whether to look into it.
    fn match_entry(
        &mut self,
        inside: &OpenFolder,
        name: Vec<u8>,
        kind: FileType,
    ) -> Result<Option<ByteBuf>, Fault> {
        let next = self.pattern.step(&inside.at, &name);
        let (is_match, goes_on) = (self.pattern.is_match(&next), self.pattern.goes_on(&next));
        if !is_match && !goes_on {
            return Ok(None);
        }
        let below = [inside.names.as_slice(), &[name]].concat();
        let path = ByteBuf::from(below.join(&b'/'));
        if path.len() > MAX_PATH {
            return Err(self.failed(Errno::NAMETOOLONG));
        }
        if goes_on && is_dir(&inside.folder, &below, kind) {
            if self.waiting.len() >= MAX_WAITING {
                return Err(Fault::new(FaultKind::TooMuch, "too many folders to look into"));
            }
            self.waiting.push((below, next));
        }
        if !is_match {
            return Ok(None);
        }
        self.found += 1;
        if self.found > self.most {
            let message = format!("the pattern matches more than {} files", self.most);
            return Err(Fault::new(FaultKind::TooMuch, message));
        }
        Ok(Some(path))
    }

    fn failed(&self, errno: Errno) -> Fault {
        PathError::os(errno, &self.path).fault("cannot search")
    }
}

fn is_dir(folder: &OwnedFd, names: &[Vec<u8>], kind: FileType) -> bool {
    match (kind, names.last()) {
        // Some file systems do not tell kinds in listings.
        (FileType::Unknown, Some(name)) => stat_at(folder, name)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        _ => kind == FileType::Directory,
    }
}

/// Answers a request to find files.
pub(super) async fn run(
    guest: &Arc<Guest>,
    glob: Glob,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let pattern = Pattern::parse(&glob.pattern)
        .map_err(|why| Fault::new(FaultKind::Invalid, format!("{:?}: {why}", glob.pattern)))?;
    let begin = move |roots: &Roots| Search::begin(roots, &glob, pattern);
    let mut search = at(guest, "search", begin).await?;
    loop {
        let guest = Arc::clone(guest);
        let (back, some) = blocking(move || {
            let some = search.some(&guest.roots);
            (search, some)
        })
        .await?;
        search = back;
        let (matches, is_end) = some?;
        for batch in batches(matches) {
            outbox.queue_item(&batch).await?;
        }
        if is_end {
            return Ok(());
        }
        // The host hears that it goes on, and we whether it still wants it to.
        outbox.item(&Vec::<ByteBuf>::new()).await?;
        if inbox.next_now()?.is_some() {
            return Err(Refusal::Disconnected);
        }
    }
}

fn batches(matches: Vec<ByteBuf>) -> Vec<Vec<ByteBuf>> {
    let mut batches: Vec<Vec<ByteBuf>> = Vec::new();
    let mut room = 0;
    for found in matches {
        let needs = found.len() + 8;
        match batches.last_mut() {
            Some(batch) if needs <= room => batch.push(found),
            _ => {
                batches.push(vec![found]);
                room = BATCH_BYTES;
            }
        }
        room = room.saturating_sub(needs);
    }
    batches
}
