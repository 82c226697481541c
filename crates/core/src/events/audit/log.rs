//! Writing a log that others write, too.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::head::sync_above;
use super::key::AuditKey;
use super::record::{Digest, Fields, Line, MAX_LINE, line};
use super::{head as signed, sync};
use crate::backend::SessionId;
use crate::host::{make_private, sync_folder};

/// Held while somebody writes.
const LOCK: &str = "lock";

/// How the chain was when it was last known to be on the disk.
pub(super) const HEAD: &str = "head";

/// How long to wait for somebody else who writes. A record takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// How long before looking again.
const AGAIN: Duration = Duration::from_millis(1);

/// How many looks somebody takes who cannot wait.
const LOOKS: usize = 1000;

/// The log of one session. It is made when the first record is.
#[derive(Debug)]
pub(crate) struct AuditLog {
    folder: PathBuf,
    id: SessionId,
    most: u64,
    key: Option<AuditKey>,
    writer: Mutex<Option<Writer>>,
    /// Whether something was written that may not be on the disk.
    is_dirty: AtomicBool,
}

/// Where the next record goes.
#[derive(Debug)]
struct Writer {
    lock: File,
    file: File,
    segment: u64,
    /// How long the file was after the last record we know of.
    end: u64,
    seq: u64,
    head: Digest,
    /// The last record we signed, or were told is signed.
    sealed: u64,
    /// What was signed last, if we did.
    signed: Option<(u64, Digest)>,
    /// Whether a folder or a file was made whose name may not be on the disk.
    has_new_names: bool,
}

impl AuditLog {
    pub(super) fn new(folder: PathBuf, id: SessionId, most: u64, key: Option<AuditKey>) -> Self {
        Self { folder, id, most, key, writer: Mutex::new(None), is_dirty: AtomicBool::new(false) }
    }

    /// Where it is.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends a record, after waiting for others who write.
    pub(super) async fn append(
        self: &Arc<Self>,
        kind: &'static str,
        fields: &Fields,
    ) -> io::Result<()> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            if self.try_append(kind, fields)? {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(io::Error::other("somebody else holds its lock"));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Appends a record if nobody else writes right now.
    pub(super) fn append_now(
        self: &Arc<Self>,
        kind: &'static str,
        fields: &Fields,
    ) -> io::Result<()> {
        for _ in 0..LOOKS {
            if self.try_append(kind, fields)? {
                return Ok(());
            }
            std::thread::yield_now();
        }
        Err(io::Error::other("somebody else holds its lock"))
    }

    /// Appends a record unless somebody else writes. Returns whether it did.
    fn try_append(self: &Arc<Self>, kind: &'static str, fields: &Fields) -> io::Result<bool> {
        let mut guard = self.writer();
        let writer = match &mut *guard {
            Some(writer) => writer,
            none => none.insert(Writer::open(&self.folder, &self.id)?),
        };
        if !writer.try_lock()? {
            return Ok(false);
        }
        let written = writer.append(&self.folder, &self.id, self.most, kind, fields);
        let unlocked = writer.lock.unlock();
        if written.is_err() {
            // What is in the file now is looked at anew.
            *guard = None;
        }
        drop(guard);
        written.and(unlocked)?;
        if !self.is_dirty.swap(true, Ordering::AcqRel) {
            sync::soon(self);
        }
        Ok(true)
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts everything on the disk, within a moment.
    pub(super) async fn sync(self: &Arc<Self>) {
        if self.is_dirty.load(Ordering::Acquire) {
            sync::now(self).await;
        }
    }

    /// Signs the chain, puts it on the disk, and notes how far that is.
    pub(super) fn sync_here(self: &Arc<Self>) -> io::Result<()> {
        if !self.is_dirty.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        if self.key.is_some() {
            self.seal()?;
            // The seal itself is covered below.
            self.is_dirty.store(false, Ordering::Release);
        }
        let (file, seq, head, has_new_names) = match &mut *self.writer() {
            Some(writer) => {
                let has_new_names = std::mem::take(&mut writer.has_new_names);
                (writer.file.try_clone()?, writer.seq, writer.head, has_new_names)
            }
            None => return Ok(()),
        };
        file.sync_data()?;
        if has_new_names {
            sync_folder(&self.folder)?;
            sync_above(&self.folder)?;
        }
        self.note(seq, head)
    }

    fn seal(self: &Arc<Self>) -> io::Result<()> {
        let Some(key) = &self.key else { return Ok(()) };
        for _ in 0..LOOKS {
            let mut guard = self.writer();
            let Some(writer) = &mut *guard else { return Ok(()) };
            if !writer.try_lock()? {
                drop(guard);
                std::thread::yield_now();
                continue;
            }
            let sealed = writer.seal(&self.folder, &self.id, key);
            return sealed.and(writer.lock.unlock());
        }
        Ok(())
    }

    /// Notes how far the log is on the disk, unless somebody noted more.
    fn note(&self, seq: u64, hash: Digest) -> io::Result<()> {
        let guard = self.writer();
        let Some(writer) = &*guard else { return Ok(()) };
        if !writer.try_lock()? {
            // They note it, or the next one does.
            return Ok(());
        }
        let noted = head(&self.folder).is_some_and(|(noted, _)| noted >= seq);
        let written = match noted {
            true => Ok(()),
            false => write_head(&self.folder, seq, hash),
        };
        let kept = match (&self.key, writer.signed) {
            (Some(key), Some(last)) => signed::write(&self.folder, &self.id, last, key),
            _ => Ok(()),
        };
        written.and(kept).and(writer.lock.unlock())
    }
}

impl Writer {
    fn open(folder: &Path, id: &SessionId) -> io::Result<Self> {
        make_private(folder)?;
        let lock = private().write(true).create(true).truncate(false).open(folder.join(LOCK))?;
        let last = segments(folder)?.last().copied();
        let segment = last.unwrap_or(1);
        let file = segment_file(folder, segment)?;
        // Where the log ends is found out under the lock.
        Ok(Self {
            lock,
            file,
            segment,
            end: 0,
            seq: 0,
            head: Digest::first(id),
            sealed: 0,
            signed: None,
            has_new_names: last.is_none(),
        })
    }

    /// Whether the lock is ours now.
    fn try_lock(&self) -> io::Result<bool> {
        match self.lock.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn append(
        &mut self,
        folder: &Path,
        id: &SessionId,
        most: u64,
        kind: &str,
        fields: &Fields,
    ) -> io::Result<()> {
        self.catch_up(folder, id)?;
        if self.end == 0 {
            self.begin(id)?;
        }
        if self.end >= most {
            self.put("close", &Fields::default().with("next", self.segment + 1))?;
            sync::file(&self.file);
            self.segment += 1;
            self.file = segment_file(folder, self.segment)?;
            self.has_new_names = true;
            self.end = 0;
            self.begin(id)?;
        }
        self.put(kind, fields)
    }

    fn begin(&mut self, id: &SessionId) -> io::Result<()> {
        let fields = Fields::default()
            .with("form", 1)
            .with("session", id)
            .with("segment", self.segment)
            .with("before", self.head.to_string());
        self.put("open", &fields)
    }

    /// Signs the chain as it is.
    fn seal(&mut self, folder: &Path, id: &SessionId, key: &AuditKey) -> io::Result<()> {
        self.catch_up(folder, id)?;
        if self.seq == 0 || self.sealed == self.seq {
            return Ok(());
        }
        let fields = Fields::default()
            .with("of", self.seq)
            .with("head", self.head.to_string())
            .with("key", key.public().to_string())
            .with("sig", key.sign(id, self.seq, &self.head));
        let last = (self.seq, self.head);
        // It belongs right after what it signs, however large the file is.
        self.put("seal", &fields)?;
        self.signed = Some(last);
        self.sealed = self.seq;
        Ok(())
    }

    /// Writes one record by one write.
    fn put(&mut self, kind: &str, fields: &Fields) -> io::Result<()> {
        let (text, hash) = line(self.seq + 1, kind, fields, self.head);
        self.file.write_all(&text)?;
        self.end += text.len() as u64;
        self.seq += 1;
        self.head = hash;
        Ok(())
    }

    /// Finds out what others have written since we last looked. Usually nothing.
    fn catch_up(&mut self, folder: &Path, id: &SessionId) -> io::Result<()> {
        loop {
            // Cheaper than asking for everything that is known of the file.
            let length = self.file.seek(SeekFrom::End(0))?;
            if length == self.end {
                // Somebody made the file and got no further.
                if self.seq == 0 && self.segment > 1 {
                    (self.seq, self.head) = last_of(folder, self.segment, id)?;
                }
                return Ok(());
            }
            let is_closed = self.read_on(folder, id, length)?;
            if !is_closed {
                return Ok(());
            }
            self.segment += 1;
            self.file = segment_file(folder, self.segment)?;
            self.end = 0;
        }
    }

    /// Reads the end of the file. Returns whether it goes on in the next one.
    fn read_on(&mut self, folder: &Path, id: &SessionId, length: u64) -> io::Result<bool> {
        // Where a power failure left zeros at the end, however many, the last record is before them.
        let data = without_zeros(&self.file, length)?;
        let window = (2 * MAX_LINE as u64).min(data);
        let start = data - window;
        let mut tail = vec![0; usize::try_from(window).unwrap_or_default()];
        self.file.read_exact_at(&mut tail, start)?;
        let mut is_closed = false;
        let mut good = None;
        let mut at = 0;
        while let Some(length) = tail[at..].iter().position(|byte| *byte == b'\n') {
            if let Some(line) = Line::parse(&tail[at..at + length]) {
                is_closed = line.text("kind") == Some("close");
                good = Some((at + length + 1, line));
            }
            at += length + 1;
        }
        if data == length
            && let Some(line) = Line::parse(&tail[at..])
        {
            // Only its line end was cut off: the record is whole.
            self.file.write_all(b"\n")?;
            (self.seq, self.head, self.end) = (line.seq, line.hash, length + 1);
            return Ok(line.text("kind") == Some("close"));
        }
        let (end, before) = match good {
            Some((end, line)) => {
                self.seq = line.seq;
                self.head = line.hash;
                (start + end as u64, None)
            }
            // The first write of a file was cut off: what came before is in the file before.
            None => (0, Some(self.segment)),
        };
        if let Some(segment) = before {
            (self.seq, self.head) = last_of(folder, segment, id)?;
        }
        self.end = length;
        if end < length {
            self.close_torn_write(end, length)?;
            return Ok(false);
        }
        Ok(is_closed)
    }

    /// Goes on after a write that was cut off, and says so: nothing that was written is removed.
    fn close_torn_write(&mut self, from: u64, length: u64) -> io::Result<()> {
        let torn = digest_between(&self.file, from, length)?;
        let fields = Fields::default()
            .with("from", from)
            .with("bytes", length - from)
            .with("blake3", torn.to_string());
        let (mut text, hash) = line(self.seq + 1, "torn", &fields, self.head);
        text.insert(0, b'\n');
        self.file.write_all(&text)?;
        self.end = length + text.len() as u64;
        self.seq += 1;
        self.head = hash;
        Ok(())
    }
}

/// The last record before a file that has none.
fn last_of(folder: &Path, segment: u64, id: &SessionId) -> io::Result<(u64, Digest)> {
    if segment <= 1 {
        return Ok((0, Digest::first(id)));
    }
    let text = fs::read(segment_path(folder, segment - 1))?;
    let lines = text.split(|byte| *byte == b'\n').rev();
    let last = lines.filter_map(Line::parse).next();
    let last = last.ok_or_else(|| io::Error::other("a file of the log holds no record"))?;
    Ok((last.seq, last.hash))
}

/// How much is read at a time.
const CHUNK: usize = 64 << 10;

/// Where a file ends that goes on with zeros up to `length`.
fn without_zeros(file: &File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let chunk = &mut chunk[..usize::try_from(end - start).unwrap_or(CHUNK)];
        file.read_exact_at(chunk, start)?;
        if let Some(last) = chunk.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// The hash of a part of a file.
fn digest_between(file: &File, from: u64, to: u64) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut at = from;
    while at < to {
        let most = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
        file.read_exact_at(&mut chunk[..most], at)?;
        hasher.update(&chunk[..most]);
        at += most as u64;
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// A file only its owner can look at.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn segment_file(folder: &Path, segment: u64) -> io::Result<File> {
    private().read(true).append(true).create(true).open(segment_path(folder, segment))
}

/// The path of a file of a log.
pub(super) fn segment_path(folder: &Path, segment: u64) -> PathBuf {
    folder.join(format!("{segment:06}.jsonl"))
}

/// The numbers of the files of a log, in order.
pub(super) fn segments(folder: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
        found.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// How far the log was on the disk: the last record, and its hash.
pub(super) fn head(folder: &Path) -> Option<(u64, Digest)> {
    let text = fs::read_to_string(folder.join(HEAD)).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    Some((value.get("seq")?.as_u64()?, Digest::from_hex(value.get("hash")?.as_str()?)?))
}

fn write_head(folder: &Path, seq: u64, hash: Digest) -> io::Result<()> {
    let next = folder.join("head.next");
    let mut file = private().write(true).create(true).truncate(true).open(&next)?;
    file.write_all(format!("{}\n", json!({"seq": seq, "hash": hash.to_string()})).as_bytes())?;
    file.sync_all()?;
    fs::rename(next, folder.join(HEAD))?;
    sync_folder(folder)
}
