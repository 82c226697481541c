//! Making the list of a snapshot from what a guest says.
//!
//! Everything here comes from inside a sandbox: it is checked, bounded, and believed only about its
//! own tree.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bastide_proto::tree::{
    Attributes, Clock, LARGE, MAX_BOOT, MAX_LINK, ScannedEntry, ScannedKind, ScannedStat, is_hidden,
};

use super::cache::{CacheReader, CacheWriter};
use super::chunk::ChunkId;
use super::tree::{
    Entry, FilePart, Kind, Order, TreeWriter, check_attributes, check_link, chunks_of,
};
use super::writer::Writer;
use crate::Result;
use crate::link::broken;

/// How many entries a tree may have.
const MAX_ENTRIES: u64 = 50_000_000;

/// How many entries that are left out are named.
const MAX_LEFT_OUT: usize = 1000;

/// How many files with several names are told apart.
const MAX_SHARED: usize = 4_000_000;

/// Makes the list of a snapshot.
#[derive(Debug)]
pub(crate) struct Assembler {
    writer: Arc<Writer>,
    list: TreeWriter,
    /// Where the cache is, and how a new one is called until it takes its place; until the guest has said
    /// which clock it has.
    cache: Option<CachePath>,
    before: CacheReader,
    after: CacheWriter,
    order: Order,
    /// Folders that are left out with all that is in them: how deep, if we are in one.
    outside: Option<u32>,
    /// The first entry of every file that has several names, by its number on the device.
    shared: HashMap<u64, u64>,
    seen: u64,
    /// The folders that lead to what is added to the list; what the guest told last may be further on.
    above: Vec<Vec<u8>>,
    pub(crate) report: Report,
}

/// Where a cache is.
#[derive(Debug)]
pub(crate) struct CachePath {
    pub(crate) path: PathBuf,
    pub(crate) temporary: PathBuf,
    /// Whether what is in it does not count this time.
    pub(crate) full_read: bool,
}

/// What is to be told besides the list.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) left_out: Vec<(String, String)>,
    pub(crate) left_out_count: u64,
    /// How many files were read, and how many bytes.
    pub(crate) files_read: u64,
    pub(crate) bytes_read: u64,
    /// Files that changed while they were read.
    pub(crate) changed: Vec<String>,
}

/// A list of entries the guest told, and what is missing to it.
#[derive(Debug)]
pub(crate) struct Batch {
    items: Vec<Item>,
    /// Which items of the list the guest told are wanted, and how long they were.
    pub(crate) wants: Vec<(u32, u64)>,
}

#[derive(Debug)]
struct Item {
    seen: ScannedEntry,
    state: ItemState,
}

#[derive(Debug)]
enum ItemState {
    /// It is not saved.
    Out,
    /// There is nothing else to know.
    Known,
    /// Its content is as it was.
    Cached(Attributes, Vec<FilePart>),
    /// Its content is on its way.
    FetchList,
}

/// What came of a wanted file.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// Its content.
    File {
        stat: ScannedStat,
        attributes: Attributes,
        file_parts: Vec<FilePart>,
        /// Whether it changed while it was read.
        changed: bool,
    },
    /// It is gone.
    Gone,
    /// It cannot be read.
    Closed(i32),
}

impl Assembler {
    pub(crate) fn new(writer: Arc<Writer>, cache: Option<CachePath>) -> Self {
        Self {
            list: TreeWriter::new(Arc::clone(&writer)),
            writer,
            cache,
            before: CacheReader::empty(),
            after: CacheWriter::nowhere(),
            order: Order::default(),
            outside: None,
            shared: HashMap::new(),
            seen: 0,
            above: Vec::new(),
            report: Report::default(),
        }
    }

    /// Which clock the times of files are of. Without one, nothing that was remembered counts, and nothing
    /// is remembered.
    pub(crate) fn clock(&mut self, clock: Clock) -> Result<()> {
        if self.seen > 0 || clock.boot.len() > MAX_BOOT {
            return Err(broken("a clock where there is none"));
        }
        let Some(CachePath { path, temporary, full_read }) = self.cache.take() else {
            return Ok(());
        };
        let known = if full_read { None } else { Some(CacheReader::open(&path, &clock)) };
        // Rows may be taken over again and again: what counts is how the clock was when the first was made,
        // so that many small steps do not go unnoticed where a large one would not.
        let (before, first) = known.unwrap_or_else(|| (CacheReader::empty(), None));
        self.before = before;
        self.after = CacheWriter::create(path, temporary, first.unwrap_or(clock))?;
        Ok(())
    }

    /// How many entries and bytes are in the list.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.list.entries, self.list.bytes)
    }

    /// Looks at entries the guest told: which of them are wanted.
    pub(crate) fn decide(&mut self, scanned: Vec<ScannedEntry>) -> Result<Batch> {
        let mut batch = Batch { items: Vec::with_capacity(scanned.len()), wants: Vec::new() };
        for (seen, index) in scanned.into_iter().zip(0_u32..) {
            self.seen += 1;
            if self.seen > MAX_ENTRIES {
                let message = format!("the tree has more than {MAX_ENTRIES} entries");
                return Err(crate::Error::new(crate::ErrorKind::LimitExceeded, message));
            }
            let state = self.look(&seen)?;
            if let ItemState::FetchList = state {
                batch.wants.push((index, seen.stat.size));
            }
            batch.items.push(Item { seen, state });
        }
        Ok(batch)
    }

    fn look(&mut self, seen: &ScannedEntry) -> Result<ItemState> {
        let is_dir = matches!(seen.kind, ScannedKind::Dir { .. });
        self.order.next(seen.depth, &seen.name, is_dir).map_err(broken)?;
        check_stat(&seen.stat)?;
        if self.outside.is_some_and(|depth| seen.depth > depth) {
            return Ok(ItemState::Out);
        }
        self.outside = None;
        if is_hidden(&seen.name) {
            self.leave_out("Bastide put it there for a while");
            self.outside = Some(seen.depth);
            return Ok(ItemState::Out);
        }
        match &seen.kind {
            ScannedKind::Dir { attributes } => {
                check_attributes(attributes).map_err(broken)?;
                Ok(ItemState::Known)
            }
            ScannedKind::File => Ok(self.look_at_file(&seen.stat)),
            ScannedKind::Symlink { target } => {
                check_link(target).map_err(broken)?;
                debug_assert!(target.len() < MAX_LINK);
                Ok(ItemState::Known)
            }
            ScannedKind::Fifo => Ok(ItemState::Known),
            kind => {
                let why = match kind {
                    ScannedKind::Socket => "it is a socket",
                    ScannedKind::Device => "it is a device",
                    ScannedKind::Mount => "something is mounted there",
                    _ => "it cannot be looked into",
                };
                self.leave_out(why);
                Ok(ItemState::Out)
            }
        }
    }

    fn look_at_file(&mut self, stat: &ScannedStat) -> ItemState {
        // Another name of a file that is in the list already needs no content; that is decided when
        // its turn comes.
        match self.before.find(self.order.names()) {
            Some(known)
                if known.is(stat)
                    && chunks_of(&known.file_parts).all(|id| self.writer.has(&id)) =>
            {
                ItemState::Cached(known.attributes, known.file_parts)
            }
            _ => ItemState::FetchList,
        }
    }

    fn leave_out(&mut self, why: &str) {
        self.report.left_out_count += 1;
        if self.report.left_out.len() < MAX_LEFT_OUT {
            self.report.left_out.push((self.order.path(), why.to_owned()));
        }
    }

    /// Adds a batch to the list, once everything that was wanted is there.
    pub(crate) fn finish(&mut self, batch: Batch, got: Vec<FetchOutcome>) -> Result<()> {
        let mut got = got.into_iter();
        for Item { seen, state } in batch.items {
            let ScannedEntry { depth, name, kind, stat } = seen;
            let entry = |kind, stat: &ScannedStat, attributes| Entry {
                depth,
                name: name.clone(),
                kind,
                mode: stat.mode,
                uid: stat.uid,
                gid: stat.gid,
                modified: stat.modified,
                attributes,
            };
            let (stat, attributes, file_parts) = match (state, kind) {
                (ItemState::Out, _) => continue,
                (ItemState::Known, ScannedKind::Dir { attributes }) => {
                    self.enter(depth, &name);
                    self.after.dir(depth, &name)?;
                    self.list.add(entry(Kind::Dir, &stat, attributes))?;
                    continue;
                }
                (ItemState::Known, ScannedKind::Symlink { target }) => {
                    self.list.add(entry(Kind::Symlink { target }, &stat, Vec::new()))?;
                    continue;
                }
                (ItemState::Known, _) => {
                    self.list.add(entry(Kind::Fifo, &stat, Vec::new()))?;
                    continue;
                }
                (ItemState::Cached(attributes, file_parts), _) => {
                    // It did not change since; so it would show if it changed now.
                    (ScannedStat { settled: true, ..stat }, attributes, file_parts)
                }
                (ItemState::FetchList, _) => match got.next() {
                    Some(FetchOutcome::File { stat, attributes, file_parts, changed }) => {
                        self.report.files_read += 1;
                        self.report.bytes_read += stat.size;
                        if changed && self.report.changed.len() < MAX_LEFT_OUT {
                            let path = self.path_of(depth, &name);
                            self.report.changed.push(path);
                        }
                        (stat, attributes, file_parts)
                    }
                    Some(FetchOutcome::Gone) => continue,
                    Some(FetchOutcome::Closed(errno)) => {
                        self.closed(self.path_of(depth, &name), errno)?;
                        continue;
                    }
                    None => return Err(broken("files are missing")),
                },
            };
            self.after.file(depth, &name, &stat, &attributes, &file_parts)?;
            let shared = stat.names > 1 && self.shared.len() < MAX_SHARED;
            let number = self.list.entries;
            if shared && let Some(first) = self.shared.get(&stat.inode) {
                self.list.add(entry(Kind::Link { entry: *first }, &stat, Vec::new()))?;
                continue;
            }
            if shared {
                self.shared.insert(stat.inode, number);
            }
            self.list.add(entry(
                Kind::File { size: stat.size, shared, file_parts },
                &stat,
                attributes,
            ))?;
        }
        Ok(())
    }

    /// Takes note of a folder that is added to the list.
    fn enter(&mut self, depth: u32, name: &[u8]) {
        let Some(above) = depth.checked_sub(1) else { return };
        self.above.truncate(usize::try_from(above).unwrap_or(usize::MAX));
        self.above.push(name.to_vec());
    }

    /// The path of something that is added to the list, as text.
    fn path_of(&self, depth: u32, name: &[u8]) -> String {
        let above = usize::try_from(depth.saturating_sub(1)).unwrap_or(usize::MAX);
        let above = self.above.iter().take(above).map(Vec::as_slice);
        let names: Vec<&[u8]> = above.chain([name]).collect();
        String::from_utf8_lossy(&names.join(&b'/')).into_owned()
    }

    /// A file that may not be read is left out, and said; one that cannot be is a failure.
    fn closed(&mut self, name: String, errno: i32) -> Result<()> {
        let error = std::io::Error::from_raw_os_error(errno);
        if error.kind() == std::io::ErrorKind::PermissionDenied {
            self.report.left_out_count += 1;
            if self.report.left_out.len() < MAX_LEFT_OUT {
                self.report.left_out.push((name, "it may not be read".to_owned()));
            }
            return Ok(());
        }
        let message = format!("cannot read {name}: {error}");
        Err(crate::Error::new(crate::ErrorKind::Io, message))
    }

    /// Ends the list: the chunks it is made of, and what else there is to tell. The cache takes its
    /// place when the snapshot does.
    pub(crate) fn end(self) -> Result<(Vec<ChunkId>, CacheWriter, Report, u64, u64)> {
        if self.seen == 0 {
            return Err(broken("a tree without a top"));
        }
        let Self { list, after, report, .. } = self;
        let (entries, bytes) = (list.entries, list.bytes);
        Ok((list.finish()?, after, report, entries, bytes))
    }
}

/// Refuses what no file can have.
pub(crate) fn check_stat(stat: &ScannedStat) -> Result<()> {
    let times = [stat.modified, stat.changed];
    let is_good = times.iter().all(|time| time.nanos < 1_000_000_000)
        && stat.mode & !0o7777 == 0
        && i64::try_from(stat.size).is_ok();
    if is_good { Ok(()) } else { Err(broken("a file that cannot be")) }
}

/// From this size on a file is asked for by itself.
pub(crate) const WORTH_A_TICKET: u64 = LARGE;

#[cfg(test)]
mod tests {
    use bastide_proto::files::FileTime;
    use serde_bytes::ByteBuf;

    use super::*;
    use crate::snapshot::store::Store;

    /// Where an undo leaves alone what it cannot read, it has to know where that is.
    #[test]
    fn names_what_may_not_be_read_by_its_whole_path() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path().join("store")).unwrap();
        let mut assembler = Assembler::new(Arc::new(store.writer().unwrap()), None);
        let time = FileTime { seconds: 0, nanos: 0 };
        let stat = ScannedStat {
            mode: 0o600,
            uid: 0,
            gid: 0,
            size: 0,
            names: 1,
            inode: 1,
            modified: time,
            changed: time,
            settled: true,
        };
        let scanned =
            |depth, name: &str, kind| ScannedEntry { depth, name: ByteBuf::from(name), kind, stat };
        let dir = || ScannedKind::Dir { attributes: Vec::new() };
        let scanned = vec![
            scanned(0, "", dir()),
            scanned(1, "a", dir()),
            scanned(2, "b", dir()),
            scanned(1, "d", dir()),
            scanned(2, "closed", ScannedKind::File),
            scanned(1, "last", ScannedKind::File),
        ];
        let batch = assembler.decide(scanned).unwrap();
        let denied = || FetchOutcome::Closed(rustix::io::Errno::ACCESS.raw_os_error());
        assembler.finish(batch, vec![denied(), denied()]).unwrap();
        let left_out: Vec<_> = assembler.report.left_out.iter().map(|(path, _)| path).collect();
        assert_eq!(left_out, ["d/closed", "last"]);
    }
}
