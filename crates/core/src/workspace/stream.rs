//! Sending files and folders into a session as one stream: a thread reads, the link takes the pieces.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use bastide_model::PosixPath;
use bastide_proto::frame::MAX_DATA;
use bastide_proto::request::{Entry, EntryKind, OnConflict, Put as PutRequest, PutItem};
use bastide_proto::{End, Fault, FaultKind, GuestPath, PutMessage, Request};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::MaterializedFile;
use super::plan::Put;
use super::sources::{HeldDir, Sources};
use crate::compat::raise;
use crate::link::fault::{agent_lost, refused};
use crate::link::{Incoming, Link, Receiver, Sender, Stream, broken, decode};
use crate::snapshot::Progress;
use crate::{Condition, Error, ErrorKind, Result};

/// How long a guest may be silent in the middle of a tree.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// How many pieces are read ahead.
const AHEAD: usize = 64;

/// The longest path of a guest that is shown.
const MAX_SHOWN: usize = 4096;

/// The next piece of what is sent.
pub(crate) enum UploadItem {
    Entry(Entry),
    Data(Bytes),
    FileEnd,
    /// Nothing more can be had. Whether a file is open is for whoever sends to know.
    Failed(Error),
}

/// Where pieces go; an error means that nobody takes them any more.
pub(crate) struct UploadSender(mpsc::Sender<UploadItem>);

/// Nobody takes pieces any more.
#[derive(Debug)]
pub(crate) struct ReceiverGone;

impl UploadSender {
    pub(crate) fn send(&self, chunk: UploadItem) -> std::result::Result<(), ReceiverGone> {
        self.0.blocking_send(chunk).map_err(|_| ReceiverGone)
    }

    /// Sends a file with all its content; whatever is said of each piece is said before it goes.
    pub(crate) fn file(
        &self,
        entry: Entry,
        content: &mut dyn Read,
        mut on_progress: impl FnMut(&[u8]),
        failed: impl FnOnce(std::io::Error) -> Error,
    ) -> Result<(), Stop> {
        self.send(UploadItem::Entry(entry))?;
        loop {
            let mut chunk = vec![0; MAX_DATA];
            let mut length = 0;
            while length < chunk.len() {
                match content.read(&mut chunk[length..]) {
                    Ok(0) => break,
                    Ok(read) => length += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Stop::Failed(failed(error))),
                }
            }
            if length == 0 {
                return Ok(self.send(UploadItem::FileEnd)?);
            }
            let is_last = length < chunk.len();
            chunk.truncate(length);
            on_progress(&chunk);
            self.send(UploadItem::Data(chunk.into()))?;
            if is_last {
                return Ok(self.send(UploadItem::FileEnd)?);
            }
        }
    }
}

/// Why reading ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Error),
    ReceiverGone,
}

impl From<ReceiverGone> for Stop {
    fn from(_: ReceiverGone) -> Self {
        Self::ReceiverGone
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// How a tree is laid out.
pub(crate) struct Target<'a> {
    pub(crate) link: &'a dyn Link,
    pub(crate) base: &'a GuestPath,
    pub(crate) existing: OnConflict,
    pub(crate) through_links: bool,
    pub(crate) progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

/// Lays out whatever `read` sends, and returns what it says at its end. It runs on a thread of its own.
pub(crate) async fn lay_out<T: Send + 'static>(
    target: &Target<'_>,
    read: impl FnOnce(&UploadSender) -> Result<T, Stop> + Send + 'static,
) -> Result<T> {
    let put = PutRequest {
        user: None,
        base: target.base.clone(),
        existing: target.existing,
        through_links: target.through_links,
    };
    let Stream { mut to_guest, mut from_guest, .. } = target.link.open(Request::Put(put)).await?;
    let (sender, mut chunks) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        let chunks = UploadSender(sender);
        match read(&chunks) {
            Ok(value) => Some(value),
            Err(Stop::Failed(error)) => {
                drop(chunks.send(UploadItem::Failed(error)));
                None
            }
            Err(Stop::ReceiverGone) => None,
        }
    });
    let is_source_slow = AtomicBool::new(false);
    let done = {
        let sending = send(&mut chunks, &mut to_guest, &is_source_slow, target.progress);
        let listening = listen(&mut from_guest, &is_source_slow, target.base);
        tokio::pin!(sending, listening);
        // Whichever ends first: a guest that fails in the middle says why and stops listening, and its
        // word is worth more than the broken pipe it leaves behind.
        tokio::select! {
            reply = &mut listening => reply,
            sent = &mut sending => match sent {
                Ok(None) => listening.await,
                // What was laid out before stays; the error is the source's.
                Ok(Some(error)) => listening.await.and(Err(error)),
                Err(lost) => match listening.await {
                    Err(error) if error.kind() != ErrorKind::AgentLost => Err(error),
                    _ => Err(lost),
                },
            },
        }
    };
    // The reader ends by itself when nobody takes its pieces.
    chunks.close();
    done?;
    let read = reading.await.map_err(|error| {
        Error::new(ErrorKind::Internal, "the reader of files failed").with_source(error)
    })?;
    read.ok_or_else(|| Error::new(ErrorKind::Internal, "the reader of files ended early"))
}

async fn send(
    chunks: &mut mpsc::Receiver<UploadItem>,
    to_guest: &mut Sender,
    is_source_slow: &AtomicBool,
    progress: Option<&(dyn Fn(Progress) + Send + Sync)>,
) -> Result<Option<Error>> {
    let (mut is_open, mut sent) = (false, Progress::default());
    loop {
        let chunk = match chunks.try_recv() {
            Ok(chunk) => Some(chunk),
            Err(_) => {
                // What waits for us must not wait with us.
                in_time(to_guest.flush()).await?;
                if let Some(on_progress) = progress {
                    on_progress(sent);
                }
                is_source_slow.store(true, Ordering::Relaxed);
                let chunk = chunks.recv().await;
                is_source_slow.store(false, Ordering::Relaxed);
                chunk
            }
        };
        match chunk {
            Some(UploadItem::Entry(entry)) => {
                is_open = entry.kind == EntryKind::File;
                sent.entries += u64::from(!is_open);
                in_time(to_guest.queue_item(&PutItem::Entry(entry))).await?;
            }
            Some(UploadItem::Data(data)) => {
                sent.bytes += data.len() as u64;
                in_time(to_guest.queue_input(data)).await?;
            }
            Some(UploadItem::FileEnd) => {
                is_open = false;
                sent.entries += 1;
                in_time(to_guest.queue_input_end()).await?;
            }
            Some(UploadItem::Failed(error)) => {
                match is_open {
                    true => in_time(to_guest.item(&PutItem::Abort)).await?,
                    false => in_time(to_guest.input_end()).await?,
                }
                return Ok(Some(error));
            }
            None => {
                in_time(to_guest.input_end()).await?;
                if let Some(on_progress) = progress {
                    on_progress(sent);
                }
                return Ok(None);
            }
        }
    }
}

/// Waits for no longer than a guest may be silent: one that takes nothing is lost.
async fn in_time(sending: impl Future<Output = Result<()>>) -> Result<()> {
    let sent = tokio::time::timeout(SILENCE, sending).await;
    sent.map_err(|_| agent_lost("the guest takes no more of a tree"))?
}

/// Waits for the end; what comes before it says how far it is, or what is in the way.
async fn listen(
    from_guest: &mut Receiver,
    is_source_slow: &AtomicBool,
    base: &GuestPath,
) -> Result<()> {
    loop {
        let Ok(incoming) = tokio::time::timeout(SILENCE, from_guest.next()).await else {
            // A source may take long to read; a guest that has something to do may not.
            match is_source_slow.load(Ordering::Relaxed) {
                true => continue,
                false => return Err(agent_lost("the guest was silent while it laid out files")),
            }
        };
        match incoming? {
            Incoming::Item(item) => match decode(&item)? {
                PutMessage::Progress { .. } | PutMessage::Obstacle(_) => {}
                _ => return Err(broken("an unknown word about a tree")),
            },
            Incoming::End(End::Done) => return Ok(()),
            Incoming::End(End::Failed(fault)) => return Err(not_made(fault, base)),
            _ => return Err(broken("not the end of a tree")),
        }
    }
}

/// What it means that something cannot be made. What the guest says about where is only shown.
fn not_made(fault: Fault, base: &GuestPath) -> Error {
    let shown = match &fault.path {
        Some(path) if path.starts_with('/') && path.len() <= MAX_SHOWN => path.clone(),
        _ => base.as_str().to_owned(),
    };
    match fault.kind {
        FaultKind::Escape => raise::invalid_manifest_path(shown, "absolute"),
        FaultKind::TooMuch | FaultKind::Stuck | FaultKind::Internal => refused(fault),
        _ => raise::workspace_archive_write(&shown)
            .with_condition(Condition::EntryNotMade(shown))
            .with_source(refused(fault)),
    }
}

/// Sends parts of a manifest. Returns the files that came from the host.
pub(super) fn send_all(
    root: &PosixPath,
    puts: Vec<Put>,
    sources: Option<&Sources>,
    chunks: &UploadSender,
) -> Result<Vec<MaterializedFile>, Stop> {
    let mut files = Vec::new();
    let sources = || {
        sources.ok_or_else(|| {
            let message =
                "the manifest names files of the host, and there is no folder they may come from";
            Error::new(ErrorKind::InvalidInput, message).with_hint("say which with `base_dir`")
        })
    };
    for put in puts {
        match put {
            Put::Dir { path, mode } => {
                chunks.send(UploadItem::Entry(Entry { mode, ..entry(&path, EntryKind::Dir) }))?;
            }
            Put::File { path, mode, content } => {
                let entry = Entry { mode: Some(mode), ..entry(&path, EntryKind::File) };
                let failed = |error| raise::workspace_archive_write(&path).with_source(error);
                chunks.file(entry, &mut content.as_ref(), |_| {}, failed)?;
            }
            Put::HostFile { path, mode, src } => {
                let mut file = sources()?.open_file(&src)?;
                let entry = Entry { mode: Some(mode), ..entry(&path, EntryKind::File) };
                let failed = |error| raise::local_file_read(&src).with_source(error);
                let sha256 = hashed(chunks, entry, &mut file, failed)?;
                files.push(MaterializedFile { path: root.join(&path).to_string(), sha256 });
            }
            Put::HostDir { path, mode, src } => {
                let held = sources()?.open_dir(&src)?;
                send_dir(root, &path, mode, held, chunks, &mut files)?;
            }
        }
    }
    Ok(files)
}

/// Sends a folder of the host. It is listed whole first: a link anywhere refuses all of it.
fn send_dir(
    root: &PosixPath,
    path: &PosixPath,
    mode: u32,
    mut held: HeldDir,
    chunks: &UploadSender,
    files: &mut Vec<MaterializedFile>,
) -> Result<(), Stop> {
    let listed = held.list()?;
    let at = path.to_string().into_bytes();
    let place = |below: &[u8]| match at.is_empty() || at == b"." {
        true => below.to_vec(),
        false => [at.as_slice(), b"/", below].concat(),
    };
    chunks.send(UploadItem::Entry(entry(path, EntryKind::Dir)))?;
    // Folders are opened wide while they are filled, and get what they had when they are full.
    let mut open: Vec<(Vec<u8>, u32)> = Vec::new();
    for item in listed {
        while let Some((folder, mode)) = open.pop_if(|(folder, _)| !is_below(&item.path, folder)) {
            close(chunks, place(&folder), mode)?;
        }
        if item.is_dir {
            chunks.send(UploadItem::Entry(Entry::new(place(&item.path), EntryKind::Dir)))?;
            open.push((item.path, item.mode));
            continue;
        }
        let mut file = held.open(&item.path)?;
        let to = place(&item.path);
        let shown = root.join(&PosixPath::new(&String::from_utf8_lossy(&to))).to_string();
        let entry = Entry { mode: Some(item.mode), ..Entry::new(to, EntryKind::File) };
        let failed = |error| raise::local_file_read(held.shown(&item.path)).with_source(error);
        let sha256 = hashed(chunks, entry, &mut file, failed)?;
        files.push(MaterializedFile { path: shown, sha256 });
    }
    while let Some((folder, mode)) = open.pop() {
        close(chunks, place(&folder), mode)?;
    }
    chunks.send(UploadItem::Entry(Entry { mode: Some(mode), ..entry(path, EntryKind::Dir) }))?;
    Ok(())
}

fn close(chunks: &UploadSender, path: Vec<u8>, mode: u32) -> Result<(), ReceiverGone> {
    chunks.send(UploadItem::Entry(Entry { mode: Some(mode), ..Entry::new(path, EntryKind::Dir) }))
}

fn is_below(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with(b"/"))
}

/// Sends a file, and says what was sent.
fn hashed(
    chunks: &UploadSender,
    entry: Entry,
    content: &mut dyn Read,
    failed: impl FnOnce(std::io::Error) -> Error,
) -> Result<String, Stop> {
    let mut digest = Sha256::new();
    chunks.file(entry, content, |chunk| digest.update(chunk), failed)?;
    Ok(hex::encode(digest.finalize()))
}

fn entry(path: &PosixPath, kind: EntryKind) -> Entry {
    let path = if path.is_empty() { String::new() } else { path.to_string() };
    Entry::new(path, kind)
}
