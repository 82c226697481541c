//! Looking through a tree.
//!
//! The order is fixed: a folder, then its entries by name, each folder's content right behind it. Only
//! so many folders are held at once; the way back up is checked, and where the tree changed meanwhile,
//! looked up again.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide_proto::files::{BATCH_BYTES, FileTime};
use bastide_proto::frame::Tag;
use bastide_proto::tree::{
    AHEAD, FetchList, MAX_DEPTH, Scan, ScanMessage, ScannedEntry, ScannedKind, ScannedStat,
};
use bastide_proto::{Accepted, End, Fault, FaultKind};
use rustix::fs::{Access, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_bytes::ByteBuf;

use super::mode_guard::ModeGuard;
use super::restore::WAIT_INTERVAL;
use super::{attributes, fetch, mode_guard, stability};
use crate::server::Guest;
use crate::server::beneath::{
    FileIdentity, MissingParents, PathError, Roots, TrailingSymlink, names, reopen, stat_at,
    stat_held,
};
use crate::server::blocking::blocking;
use crate::server::call::{Disconnected, Inbox, Outbox, Refusal};
use crate::server::files::some_entries;
use crate::server::side_channel::SideChannel;
use crate::server::unchanged::{self, FolderWatch, Unchanged};

/// How long one piece of the work takes.
const SLICE: Duration = Duration::from_millis(200);

/// How many folders are held at once.
const HELD: usize = 32;

/// How many folders that their owner has closed are opened at once.
const UNLOCKED: usize = 512;

/// How often an entry that changes while it is looked at is looked at again.
const ATTEMPTS: usize = 8;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The names of a folder's entries, in order.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    /// Where each begins, and its length.
    order: Vec<(u32, u16)>,
    next: usize,
}

impl Names {
    fn read(folder: &OwnedFd) -> Result<Self, Errno> {
        let mut names = Self::default();
        while let Some(entries) = some_entries(folder)? {
            for (name, _) in entries {
                let start = u32::try_from(names.bytes.len()).map_err(|_| Errno::FBIG)?;
                let length = u16::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
                names.order.push((start, length));
                names.bytes.extend(name);
            }
        }
        let Self { bytes, order, .. } = &mut names;
        order.sort_unstable_by(|one, other| slice(bytes, *one).cmp(slice(bytes, *other)));
        // A folder that changes while it is read may name an entry twice.
        order.dedup_by(|one, other| slice(bytes, *one) == slice(bytes, *other));
        Ok(names)
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let name = slice(&self.bytes, *self.order.get(self.next)?).to_vec();
        self.next += 1;
        Some(name)
    }
}

fn slice(bytes: &[u8], (start, length): (u32, u16)) -> &[u8] {
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    bytes.get(start..start.saturating_add(usize::from(length))).unwrap_or_default()
}

#[derive(Debug)]
struct Level {
    /// The names that lead here from the base.
    path: Arc<Vec<Vec<u8>>>,
    node: FileIdentity,
    /// Not there while too many below are.
    folder: Option<OwnedFd>,
    names: Names,
}

/// Where an entry that was told is: the names of its folder, and its own.
pub(super) type EntryRef = (Arc<Vec<Vec<u8>>>, Vec<u8>);

/// A tree that is being looked through.
#[derive(Debug)]
pub(super) struct Scanner {
    base: Arc<OwnedFd>,
    left_out: Vec<Vec<Vec<u8>>>,
    levels: Vec<Level>,
    /// Folders that their owner had closed; until all that is wanted of them is read.
    unlocked: Vec<ModeGuard>,
    begun: bool,
    /// The folder at the top, if its owner had closed it.
    top: Option<ModeGuard>,
    /// Watches every folder of the tree, where that can be done.
    watch: Option<FolderWatch>,
}

/// Some entries, and where the host finds them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<ScannedEntry>,
    pub(super) entry_refs: Vec<EntryRef>,
    bytes: usize,
}

impl Scanner {
    /// Opens the folder at the top.
    pub(super) fn begin(roots: &Roots, scan: &Scan) -> Result<Self, PathError> {
        let at = names(scan.base.as_str().as_bytes());
        let place = roots.locate(&at, TrailingSymlink::Target, MissingParents::Fails)?;
        let wanted = Access::READ_OK | Access::EXEC_OK;
        let opened = mode_guard::open_top(roots, &place, wanted);
        let (base, top) = opened.map_err(|errno| place.failed(errno))?;
        let left_out = scan.left_out.iter().map(|path| names(path)).collect();
        Ok(Self { left_out, top, ..Self::of(Arc::new(base)) })
    }

    /// Has every folder watched from before it is read.
    fn watched(self, unchanged: &Unchanged) -> Self {
        let watch = unchanged.watch(&*self.base);
        Self { watch, ..self }
    }

    /// Looks through all of a folder that is open.
    pub(super) fn of(base: Arc<OwnedFd>) -> Self {
        let (left_out, levels, unlocked) = (Vec::new(), Vec::new(), Vec::new());
        Self { base, left_out, levels, unlocked, begun: false, top: None, watch: None }
    }

    /// The folder at the top.
    pub(super) fn base(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.base)
    }

    /// Some more entries; whether that was all.
    pub(super) fn some(&mut self, roots: &Roots) -> Result<(Batch, bool), Errno> {
        let until = Instant::now() + SLICE;
        let mut batch = Batch::default();
        if !self.begun {
            self.begun = true;
            let folder = reopen(&*self.base, FOLDER)?;
            let mut stat = top(seen(&fstat(&folder)?), geteuid().as_raw());
            stat.mode = self.top.as_ref().map_or(stat.mode, ModeGuard::mode);
            let kind = ScannedKind::Dir { attributes: attributes::read(&folder) };
            batch.add(0, Arc::default(), Vec::new(), kind, stat);
            self.push(Arc::default(), folder)?;
        }
        while batch.bytes < BATCH_BYTES && Instant::now() < until {
            let Some(level) = self.levels.last_mut() else { return Ok((batch, true)) };
            match level.names.take() {
                Some(name) => self.entry(roots, name, &mut batch)?,
                None => self.leave(roots),
            }
        }
        Ok((batch, false))
    }

    /// Looks at one entry of the innermost folder.
    fn entry(&mut self, roots: &Roots, name: Vec<u8>, batch: &mut Batch) -> Result<(), Errno> {
        let depth = self.levels.len();
        let Some(level) = self.levels.last() else { return Ok(()) };
        let path = Arc::clone(&level.path);
        if self.is_left_out(&path, &name) {
            return Ok(());
        }
        let Some(folder) = &level.folder else { return Ok(()) };
        for _ in 0..ATTEMPTS {
            let stat = match stat_at(folder, &name) {
                Ok(stat) => stat,
                // It went away while we were looking.
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
                Err(errno) => return Err(errno),
            };
            let stat_of_entry = seen(&stat);
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => ScannedKind::File,
                FileType::Symlink => match readlinkat(folder, name.as_slice(), Vec::new()) {
                    Ok(target) => {
                        ScannedKind::Symlink { target: ByteBuf::from(target.into_bytes()) }
                    }
                    // Something else by now.
                    Err(Errno::INVAL | Errno::NOENT) => continue,
                    Err(errno) => return Err(errno),
                },
                FileType::Fifo => ScannedKind::Fifo,
                FileType::Socket => ScannedKind::Socket,
                FileType::Directory => match enter(roots, folder, &level.node, &name) {
                    Ok(Some((inside, unlocked))) => {
                        let mut stat = seen(&fstat(&inside)?);
                        if let Some(unlocked) = unlocked {
                            if self.unlocked.len() >= UNLOCKED {
                                return Err(Errno::MFILE);
                            }
                            stat.mode = unlocked.mode();
                            self.unlocked.push(unlocked);
                        }
                        let kind = ScannedKind::Dir { attributes: attributes::read(&inside) };
                        batch.add(depth, Arc::clone(&path), name.clone(), kind, stat);
                        let mut below = path.to_vec();
                        below.push(name);
                        return self.push(Arc::new(below), inside);
                    }
                    Ok(None) => ScannedKind::Mount,
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                    Err(errno) => ScannedKind::Closed { errno: errno.raw_os_error() },
                },
                _ => ScannedKind::Device,
            };
            batch.add(depth, path, name, kind, stat_of_entry);
            return Ok(());
        }
        // Somebody swaps it faster than we can look. It has no state to save.
        Ok(())
    }

    fn is_left_out(&self, path: &[Vec<u8>], name: &[u8]) -> bool {
        self.left_out
            .iter()
            .any(|out| out.split_last().is_some_and(|(last, above)| last == name && above == path))
    }

    fn push(&mut self, path: Arc<Vec<Vec<u8>>>, folder: OwnedFd) -> Result<(), Errno> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        self.watch = self.watch.take().and_then(|mut watch| watch.add(&folder).then_some(watch));
        let names = Names::read(&folder)?;
        let node = stat_held(&folder)?;
        self.levels.push(Level { path, node, folder: Some(folder), names });
        if let Some(far) = self.levels.len().checked_sub(HELD + 1) {
            self.levels[far].folder = None;
        }
        Ok(())
    }

    /// Goes back up.
    fn leave(&mut self, roots: &Roots) {
        let Some(left) = self.levels.pop() else { return };
        let base = Arc::clone(&self.base);
        let Some(above) = self.levels.last_mut() else { return };
        if above.folder.is_some() {
            return;
        }
        let flags = FOLDER | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let climbed = left.folder.and_then(|from| openat(from, c"..", flags, Mode::empty()).ok());
        let is_it =
            |folder: &OwnedFd| stat_held(folder).is_ok_and(|it| it.is_same_file(&above.node));
        above.folder = climbed.filter(is_it).or_else(|| {
            // The tree changed; perhaps the folder is still where it was.
            roots.open_below(&base, &above.path, FOLDER).ok().filter(is_it)
        });
        if above.folder.is_none() {
            above.names = Names::default();
        }
    }
}

impl Batch {
    fn add(
        &mut self,
        depth: usize,
        folder: Arc<Vec<Vec<u8>>>,
        name: Vec<u8>,
        kind: ScannedKind,
        stat: ScannedStat,
    ) {
        let more = match &kind {
            ScannedKind::Dir { attributes } => {
                attributes.iter().map(|(name, value)| name.len() + value.len() + 8).sum()
            }
            ScannedKind::Symlink { target } => target.len(),
            _ => 0,
        };
        self.bytes += name.len() + more + 56;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        self.entries.push(ScannedEntry { depth, name: ByteBuf::from(name.as_slice()), kind, stat });
        self.entry_refs.push((folder, name));
    }
}

/// Opens a folder; nothing if it is a mount.
fn enter(
    roots: &Roots,
    folder: &OwnedFd,
    above: &FileIdentity,
    name: &[u8],
) -> Result<Option<(OwnedFd, Option<ModeGuard>)>, Errno> {
    let (entered, unlocked) = match mode_guard::enter(roots, folder, name) {
        Err(Errno::XDEV) => return Ok(None),
        entered => entered?,
    };
    let node = stat_held(&entered)?;
    Ok(roots.continues(&node, above).then_some((entered, unlocked)))
}

/// What the host is told about a file.
pub(super) fn seen(stat: &Stat) -> ScannedStat {
    let time =
        |seconds: i64, nanos: u64| FileTime { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
    #[expect(clippy::useless_conversion, reason = "narrower on some machines")]
    ScannedStat {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        names: u64::from(stat.st_nlink),
        inode: stat.st_ino,
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
        settled: false,
    }
}

/// What is told of the folder at the top. One that is another's cannot be given its time back by whoever restores into it, so
/// it has none: in a pod the workspace is a folder of the node's.
fn top(stat: ScannedStat, own: u32) -> ScannedStat {
    match own == 0 || stat.uid == own {
        true => stat,
        false => ScannedStat { modified: FileTime { seconds: 0, nanos: 0 }, ..stat },
    }
}

/// Answers a request to look through a tree.
pub(in crate::server) async fn run(
    guest: &Arc<Guest>,
    scan: &Scan,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    outbox.accept(Accepted::default()).await?;
    // Not while a tree takes the place of another: it would be a bit of both.
    let _turn = loop {
        match tokio::time::timeout(WAIT_INTERVAL, guest.restores.read()).await {
            Ok(turn) => break turn,
            Err(_) => outbox.item(&ScanMessage::Busy).await?,
        }
    };
    let (asked, held) = (scan.clone(), Arc::clone(guest));
    let begun = blocking(move || {
        let begun = Scanner::begin(&held.roots, &asked);
        begun.map(|scanner| scanner.watched(&held.unchanged))
    })
    .await;
    let begun = begun.and_then(|begun| begun.map_err(|error| error.fault("cannot look through")));
    let scanner = match begun {
        Ok(scanner) => scanner,
        Err(fault) => return Ok(outbox.end(&End::Failed(fault)).await?),
    };
    let end = match send_entries(guest, scanner, side, inbox, outbox).await {
        Ok(()) => End::Done,
        Err(Refusal::Fault(fault)) => End::Failed(fault),
        Err(Refusal::Disconnected) => return Err(Refusal::Disconnected),
    };
    Ok(outbox.end(&end).await?)
}

async fn send_entries(
    guest: &Arc<Guest>,
    mut scanner: Scanner,
    side: Option<&SideChannel>,
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    if let Some(clock) = stability::clock() {
        outbox.item(&ScanMessage::Clock(clock)).await?;
    }
    let mut fetcher = fetch::Fetcher::new(scanner.base());
    let mut ahead: VecDeque<Vec<EntryRef>> = VecDeque::new();
    let mut is_end = false;
    let mut watch = None;
    loop {
        while !is_end && ahead.len() < AHEAD {
            let held = Arc::clone(guest);
            let (back, some) = blocking(move || {
                let some = scanner.some(&held.roots);
                (scanner, some)
            })
            .await?;
            scanner = back;
            let (batch, end) = some.map_err(|errno| {
                let message = format!("cannot look through the tree: {errno}");
                let errno = Some(errno.raw_os_error());
                Fault { errno, ..Fault::new(FaultKind::Io, message) }
            })?;
            is_end = end;
            watch = scanner.watch.take_if(|_| is_end);
            if batch.entries.is_empty() {
                outbox.item(&ScanMessage::Busy).await?;
                continue;
            }
            outbox.item(&ScanMessage::Entries(batch.entries)).await?;
            ahead.push_back(batch.entry_refs);
        }
        let Some(entry_refs) = ahead.pop_front() else { break };
        let frame = inbox.next().await?;
        let wanted: FetchList = match frame.tag {
            Tag::Item => bastide_proto::decode(&frame.body).map_err(|_| Disconnected)?,
            _ => return Err(Refusal::Disconnected),
        };
        if !wanted.files.is_empty() {
            fetcher.prepare(outbox).await?;
        }
        fetcher = fetcher.send(guest, entry_refs, wanted, side, outbox).await?;
    }
    let watch = watch.filter(|_| outbox.takes_tree_tokens());
    if let Some(token) = watch.and_then(|watch| unchanged::keep(guest, watch)) {
        outbox.item(&ScanMessage::Token(token)).await?;
    }
    Ok(())
}
