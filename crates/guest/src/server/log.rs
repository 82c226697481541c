//! What a process has said, kept so that it can be read again from any offset.
//!
//! A log is a journal of pieces, each a tag, a length and data. A short one lives in memory; a longer
//! one moves to a file that has no name, so that it goes with the guest and no command can find it. An
//! offset counts the bytes of data alone, of both streams together.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide_proto::frame::{MAX_DATA, Tag};
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use tokio::sync::Notify;

/// How much of a log lives in memory.
const IN_MEMORY: usize = 256 * 1024;

/// How much all logs of a session take on the disk, where nobody says less. Of what comes after, only a count is kept,
/// unless somebody listens: then what was heard is forgotten instead.
const MOST: u64 = 8 * 1024 * 1024 * 1024;

/// How far apart the marks are by which an offset is found again.
const MARK_EVERY: u64 = 1024 * 1024;

/// How far output may run ahead of the reader it waits for.
const AHEAD: u64 = 8 * 1024 * 1024;

const HEADER: usize = 5;

/// How many names may be taken where a file has to have one for a moment.
const TAKEN: usize = 1000;

/// The folder in which logs without a name are made, and how much they may take there together.
#[derive(Debug)]
pub(crate) struct LogFolder {
    folder: OwnedFd,
    room: Arc<AtomicU64>,
}

/// What one log takes on the disk; given back with it.
#[derive(Debug)]
struct DiskReservation {
    room: Arc<AtomicU64>,
    bytes: u64,
}

impl DiskReservation {
    fn take(&mut self, bytes: u64) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(bytes);
        match self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => {
                self.bytes += bytes;
                Ok(())
            }
            Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

impl Drop for DiskReservation {
    fn drop(&mut self) {
        self.room.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl LogFolder {
    /// Logs may take as much as the disk of the session may, if that is limited.
    pub(crate) fn new(folder: OwnedFd, disk: Option<u64>) -> Self {
        let room = disk.unwrap_or(MOST).min(MOST);
        Self { folder, room: Arc::new(AtomicU64::new(room)) }
    }

    /// Whether there is hardly any room left.
    pub(crate) fn is_short(&self) -> bool {
        self.room.load(Ordering::Relaxed) < IN_MEMORY as u64
    }

    fn taken(&self) -> DiskReservation {
        DiskReservation { room: Arc::clone(&self.room), bytes: 0 }
    }

    fn new_file(&self) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match openat(self.folder.as_fd(), ".", flags, mode) {
            Ok(file) => Ok(file.into()),
            // Not every file system knows files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => self.unnamed(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A file whose name is taken away at once.
    fn unnamed(&self) -> io::Result<File> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for _ in 0..TAKEN {
            let name = format!(".bastide-log-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
            match openat(self.folder.as_fd(), &name, flags, Mode::RUSR | Mode::WUSR) {
                // The folder may be one that commands write to.
                Err(Errno::EXIST) => {}
                opened => {
                    let file = opened?;
                    unlinkat(self.folder.as_fd(), &name, AtFlags::empty())?;
                    return Ok(file.into());
                }
            }
        }
        Err(Errno::EXIST.into())
    }
}

/// What a process has said so far.
#[derive(Debug)]
pub(crate) struct OutputLog {
    inner: Mutex<Inner>,
    /// Something was added, or the end was reached.
    grown: Notify,
    /// Somebody has read on.
    read_on: Notify,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    /// Where what is kept begins: what came before was heard, and is forgotten.
    base: LogPosition,
    /// Where the journal and the data end.
    end: LogPosition,
    marks: Vec<LogPosition>,
    /// How many bytes came after the log was full.
    lost: u64,
    /// Whether more can come.
    open: bool,
    /// Where the reader is that output waits for, if it waits for one.
    awaited: Option<u64>,
}

#[derive(Debug)]
enum Store {
    Memory(Vec<u8>),
    File(File, DiskReservation),
}

/// A place between two pieces: in the journal, and in the data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct LogPosition {
    framed: u64,
    data: u64,
}

/// How far a reader has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    place: LogPosition,
    /// How much of the next piece was asked to be left out.
    skip: usize,
}

impl OutputLog {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            store: Store::Memory(Vec::new()),
            base: LogPosition::default(),
            end: LogPosition::default(),
            marks: vec![LogPosition::default()],
            lost: 0,
            open: true,
            awaited: None,
        };
        Self { inner: Mutex::new(inner), grown: Notify::new(), read_on: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it holds the lock; if it did, a log with a piece missing is still one.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a piece of at most [`MAX_DATA`] bytes, waiting first while the awaited reader is far behind. Where there is no
    /// room, it waits until that one has heard everything; where nobody is awaited, the piece is lost.
    pub(crate) async fn append(&self, folder: &LogFolder, tag: Tag, data: &[u8]) {
        loop {
            let read_on = self.read_on.notified();
            {
                let mut inner = self.lock();
                let behind = inner.awaited.map(|at| inner.end.data.saturating_sub(at));
                if behind.is_none_or(|behind| behind < AHEAD)
                    && inner.append(folder, tag, data, behind)
                {
                    break;
                }
            }
            read_on.await;
        }
        self.grown.notify_waiters();
    }

    /// Says that nothing more will come.
    pub(crate) fn close(&self) {
        self.lock().open = false;
        self.grown.notify_waiters();
    }

    /// Whether nothing more will come.
    pub(crate) fn is_closed(&self) -> bool {
        !self.lock().open
    }

    /// Waits until nothing more will come.
    pub(crate) async fn closed(&self) {
        loop {
            let grown = self.grown.notified();
            if self.is_closed() {
                return;
            }
            grown.await;
        }
    }

    /// Makes output wait for a reader, from where it is now; or for nobody.
    pub(crate) fn wait_for(&self, reader: Option<&Cursor>) {
        self.lock().awaited = reader.map(|cursor| cursor.place.data);
        self.read_on.notify_waiters();
    }

    /// How many bytes of data there have been.
    pub(crate) fn length(&self) -> u64 {
        let inner = self.lock();
        inner.end.data + inner.lost
    }

    /// How many bytes came after the log was full.
    pub(crate) fn lost(&self) -> u64 {
        self.lock().lost
    }

    /// Whether all there has been is small enough to forget once it was delivered.
    pub(crate) fn is_small(&self) -> bool {
        matches!(self.lock().store, Store::Memory(_))
    }

    /// A reader that starts at `offset`, or at the end if there is not that much.
    pub(crate) fn cursor(&self, offset: u64) -> io::Result<Cursor> {
        self.lock().cursor(offset)
    }

    /// The next piece, if there is one now.
    pub(crate) fn next(&self, cursor: &mut Cursor) -> io::Result<Option<(Tag, Bytes)>> {
        let mut inner = self.lock();
        let next = inner.next(cursor)?;
        if next.is_some() && inner.awaited.is_some() {
            inner.awaited = Some(cursor.place.data);
            drop(inner);
            self.read_on.notify_waiters();
        }
        Ok(next)
    }

    /// Waits until there is something at `cursor`, or nothing more will come.
    pub(crate) async fn ready(&self, cursor: &Cursor) {
        loop {
            let grown = self.grown.notified();
            {
                let inner = self.lock();
                if !inner.open || inner.end.framed > cursor.place.framed {
                    return;
                }
            }
            grown.await;
        }
    }
}

impl Cursor {
    /// How many bytes of data lie before what is read next.
    pub(crate) fn offset(&self) -> u64 {
        self.place.data + self.skip as u64
    }
}

impl Inner {
    /// Whether the piece is seen to; if not, whoever is awaited has to read on first.
    fn append(&mut self, folder: &LogFolder, tag: Tag, data: &[u8], behind: Option<u64>) -> bool {
        let length = data.len() as u64;
        if self.lost > 0 {
            self.lost += length;
            return true;
        }
        // A disk that is full makes the log full; the command goes on.
        if self.store(folder, tag, data).is_err() {
            match behind {
                None => {
                    self.lost += length;
                    return true;
                }
                Some(0) => {
                    self.forget();
                    if self.store(folder, tag, data).is_err() {
                        self.lost += length;
                        return true;
                    }
                }
                Some(_) => return false,
            }
        }
        self.end = LogPosition {
            framed: self.end.framed + HEADER as u64 + length,
            data: self.end.data + length,
        };
        let last = self.marks.last().map_or(0, |mark| mark.data);
        if self.end.data >= last + MARK_EVERY {
            self.marks.push(self.end);
        }
        true
    }

    /// Keeps nothing of what there has been.
    fn forget(&mut self) {
        self.base = self.end;
        self.marks = vec![self.end];
        self.store = Store::Memory(Vec::new());
    }

    fn store(&mut self, folder: &LogFolder, tag: Tag, data: &[u8]) -> io::Result<()> {
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        let mut chunk = Vec::with_capacity(HEADER + data.len());
        chunk.push(tag as u8);
        chunk.extend_from_slice(&length.to_le_bytes());
        chunk.extend_from_slice(data);
        if let Store::Memory(memory) = &mut self.store {
            if memory.len() + chunk.len() <= IN_MEMORY {
                memory.extend_from_slice(&chunk);
                return Ok(());
            }
            let mut taken = folder.taken();
            taken.take(memory.len() as u64)?;
            let file = folder.new_file()?;
            file.write_all_at(memory, 0)?;
            self.store = Store::File(file, taken);
        }
        match &mut self.store {
            Store::File(file, taken) => {
                taken.take(chunk.len() as u64)?;
                file.write_all_at(&chunk, self.end.framed - self.base.framed)
            }
            Store::Memory(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn cursor(&self, offset: u64) -> io::Result<Cursor> {
        let offset = offset.clamp(self.base.data, self.end.data);
        let before = self.marks.partition_point(|mark| mark.data <= offset);
        let mut place = before.checked_sub(1).and_then(|at| self.marks.get(at)).copied();
        let mut place = place.take().unwrap_or(self.base);
        while place.framed < self.end.framed {
            let (_, length) = self.header(place.framed)?;
            let next = LogPosition {
                framed: place.framed + HEADER as u64 + length as u64,
                data: place.data + length as u64,
            };
            if next.data > offset {
                break;
            }
            place = next;
        }
        let skip = usize::try_from(offset - place.data).map_err(io::Error::other)?;
        Ok(Cursor { place, skip })
    }

    fn next(&self, cursor: &mut Cursor) -> io::Result<Option<(Tag, Bytes)>> {
        if cursor.place.framed >= self.end.framed {
            return Ok(None);
        }
        let (tag, length) = self.header(cursor.place.framed)?;
        let start = cursor.place.framed + HEADER as u64;
        let mut data = vec![0; length.saturating_sub(cursor.skip)];
        self.read(start + cursor.skip as u64, &mut data)?;
        cursor.place =
            LogPosition { framed: start + length as u64, data: cursor.place.data + length as u64 };
        cursor.skip = 0;
        Ok(Some((tag, data.into())))
    }

    fn header(&self, at: u64) -> io::Result<(Tag, usize)> {
        let mut header = [0; HEADER];
        self.read(at, &mut header)?;
        let [tag, a, b, c, d] = header;
        let tag = if tag == Tag::Stderr as u8 { Tag::Stderr } else { Tag::Stdout };
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).map_err(io::Error::other)?;
        Ok((tag, length.min(MAX_DATA)))
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        // A reader that nobody waited for may be behind what is kept.
        let at = at.checked_sub(self.base.framed).ok_or(io::ErrorKind::NotFound)?;
        match &self.store {
            Store::File(file, _) => file.read_exact_at(buffer, at),
            Store::Memory(memory) => {
                let start = usize::try_from(at).map_err(io::Error::other)?;
                let chunk = memory.get(start..start + buffer.len());
                buffer.copy_from_slice(chunk.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
