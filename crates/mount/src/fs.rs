//! A file system over an object store.

mod block_requests;
mod blocks;
mod change;
mod content;
mod counters;
mod file;
mod folders;
mod handles;
mod listing;
mod siblings;
mod staging;
mod tree;
mod upload;

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use rustix::io::Errno;

use crate::cache::Cache;
use crate::control::{Channel, Event, Report};
use crate::fuse::abi::{Attributes, Op, Reply, Request};
use crate::spec::{MountSpec, Start};
use crate::store::{MAX_KEY, Store};
use blocks::Blocks;
use counters::Counters;
pub use counters::Counts;
use file::FileNode;
use folders::{Entry, Folders};
use handles::Handles;
use siblings::SequentialFiles;
use staging::Staging;
pub(crate) use staging::UNSTORED;
use tree::{ROOT, Tree};

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
/// How long the kernel believes what it was told; asking us costs little.
const KERNEL_TTL_MS: u32 = 1000;

/// How long one write to a file on disk may take.
const WRITE: std::time::Duration = std::time::Duration::from_secs(2);

/// One mount.
#[derive(Debug)]
pub(crate) struct Fs {
    spec: MountSpec,
    store: Arc<Store>,
    /// Begins every key.
    root: String,
    staging: Staging,
    blocks: Arc<Blocks>,
    tree: Mutex<Tree>,
    folders: Mutex<Folders>,
    handles: Handles,
    siblings: SequentialFiles,
    counters: Arc<Counters>,
    channel: Arc<Channel>,
    /// Held by whoever moves a folder; shared by whoever relies on a key.
    moving: tokio::sync::RwLock<()>,
    /// Room for what is on its way to the store.
    uploading: tokio::sync::Semaphore,
    /// Whoever fetches a listing of a folder holds the gate of it, one of a few.
    gates: [tokio::sync::Mutex<()>; 16],
    mounted: SystemTime,
}

type Answer = Result<Reply, Errno>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a failure of the disk means to a program.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A name that a program gave. Keys are text.
fn text(name: &[u8]) -> Result<&str, Errno> {
    if name.len() > 255 {
        return Err(Errno::NAMETOOLONG);
    }
    std::str::from_utf8(name).map_err(|_| Errno::ILSEQ)
}

impl Fs {
    pub(crate) fn new(
        spec: &MountSpec,
        store: Store,
        start: &Start,
        cache: Option<Arc<Cache>>,
        channel: Arc<Channel>,
    ) -> std::io::Result<Self> {
        let store = Arc::new(store);
        let counters = Arc::new(Counters::default());
        let table = start.staging.join(format!("{}.nodes", spec.id));
        Ok(Self {
            root: spec.root(),
            blocks: Arc::new(Blocks::new(
                Arc::clone(&store),
                cache,
                Arc::clone(&counters),
                spec.timeout(),
            )),
            tree: Mutex::new(Tree::open(&table, spec.resumed)?),
            folders: Mutex::new(Folders::new(spec.metadata_ttl())),
            handles: Handles::new(),
            siblings: SequentialFiles::default(),
            counters,
            channel,
            moving: tokio::sync::RwLock::new(()),
            uploading: tokio::sync::Semaphore::new(upload::MEMORY),
            gates: Default::default(),
            mounted: SystemTime::now(),
            staging: Staging::new(start.staging.clone(), start.staging_size),
            store,
            spec: spec.clone(),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.spec.id
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counters.now()
    }

    /// Answers one request; none for those that want no answer.
    pub(crate) async fn answer(&self, request: Request) -> Option<Answer> {
        let node = request.node;
        if self.spec.read_only && changes(&request.op) {
            return Some(Err(Errno::ROFS));
        }
        Some(match request.op {
            Op::Init(handshake) if handshake.is_understood() => Ok(Reply::Init(handshake)),
            Op::Init(_) => Err(Errno::PROTO),
            Op::Forget(nodes) => {
                let mut tree = self.tree();
                for (node, lookups) in nodes {
                    tree.forget(node, lookups);
                }
                return None;
            }
            Op::Interrupt { .. } => return None,
            Op::Lookup { name } => self.lookup(node, &name).await,
            Op::GetAttr => self.get_attributes(node).await,
            Op::SetAttr { size, handle, mtime } => {
                self.set_attributes(node, size, handle, mtime).await
            }
            Op::MakeNode { name, mode } => self.make_node(node, &name, mode).await,
            Op::MakeFolder { name } => self.make_folder(node, &name).await,
            Op::Unlink { name } => self.unlink(node, &name).await,
            Op::RemoveFolder { name } => self.remove_folder(node, &name).await,
            Op::Rename { from, folder, to, flags } => {
                self.rename(node, &from, folder, &to, flags).await
            }
            Op::Open { flags } => self.open(node, flags).await,
            Op::Create { name, flags } => self.create(node, &name, flags).await,
            Op::Read { handle, offset, size } => self.read(handle, offset, size).await,
            Op::Write { handle, offset, data } => self.write(handle, offset, data).await,
            Op::Flush { handle } | Op::Sync { handle } => self.sync(handle).await,
            Op::Release { handle } => self.release(handle).await,
            Op::OpenFolder => self.open_folder(node),
            Op::ReadFolder { handle, offset, size, plus } => {
                self.read_folder(handle, offset, size, plus).await
            }
            Op::ReleaseFolder { handle } => {
                self.handles.close_folder(handle);
                Ok(Reply::Empty)
            }
            Op::StatFs => Ok(Reply::StatFs),
            Op::Nothing | Op::Destroy => Ok(Reply::Empty),
            Op::Unknown => Err(Errno::NOSYS),
            Op::Unsupported => Err(Errno::OPNOTSUPP),
        })
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        lock(&self.tree)
    }

    fn folders(&self) -> MutexGuard<'_, Folders> {
        lock(&self.folders)
    }

    /// The key of a file.
    fn key(&self, node: u64) -> Result<String, Errno> {
        let path = self.tree().path(node).ok_or(Errno::STALE)?;
        Ok(format!("{}{path}", self.root))
    }

    /// What begins the keys of everything in a folder.
    fn folder_key(&self, node: u64) -> Result<String, Errno> {
        let path = self.tree().path(node).ok_or(Errno::STALE)?;
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        Ok(format!("{}{path}/", self.root))
    }

    /// The key of a name in a folder.
    fn key_in(&self, folder: u64, name: &str) -> Result<String, Errno> {
        let key = format!("{}{name}", self.folder_key(folder)?);
        // A folder's own object has one byte more.
        if key.len() < MAX_KEY { Ok(key) } else { Err(Errno::NAMETOOLONG) }
    }

    fn file(&self, node: u64) -> Result<Arc<FileNode>, Errno> {
        let tree = self.tree();
        let node = tree.node(node).ok_or(Errno::STALE)?;
        node.file.clone().ok_or(Errno::ISDIR)
    }

    async fn lookup(&self, folder: u64, name: &[u8]) -> Answer {
        let name = text(name)?;
        let local = {
            let tree = self.tree();
            let child = tree.child(folder, name);
            child.filter(|id| {
                tree.node(*id).and_then(|n| n.file.as_ref()).is_some_and(|f| f.is_local())
            })
        };
        if let Some(node) = local {
            self.tree().looked_up(node);
            return Ok(Reply::Entry(self.attributes(node)?));
        }
        let requested_at = Instant::now();
        let entry = self.find(folder, name).await?.ok_or(Errno::NOENT)?;
        self.introduce(folder, &name.into(), &entry, requested_at).map(Reply::Entry)
    }

    /// Gives an entry of the store, which was asked for it at `requested_at`, a node that the kernel is about to hear of.
    fn introduce(
        &self,
        folder: u64,
        name: &Arc<str>,
        entry: &Entry,
        requested_at: Instant,
    ) -> Result<Attributes, Errno> {
        let mut tree = self.tree();
        let node = tree.ensure(folder, name, matches!(entry, Entry::Folder));
        tree.looked_up(node);
        tree.record().map_err(|error| errno(&error))?;
        if let (Entry::File(meta), Some(file)) =
            (entry, tree.node(node).and_then(|node| node.file.as_ref()))
        {
            file.learn(meta, requested_at);
        }
        drop(tree);
        self.attributes(node)
    }

    /// What is known of a node without asking anybody.
    fn attributes(&self, id: u64) -> Result<Attributes, Errno> {
        let tree = self.tree();
        let node = tree.node(id).ok_or(Errno::STALE)?;
        let Some(file) = &node.file else {
            return Ok(self.describe(id, FOLDER | self.spec.folder_mode, 0, self.mounted));
        };
        let state = file.state();
        let (size, time) = match (&state.local, &state.stored) {
            (Some((size, time)), _) => (*size, *time),
            (None, Some(meta)) => (meta.size, meta.mtime),
            (None, None) => return Err(Errno::STALE),
        };
        Ok(self.describe(id, FILE | self.spec.file_mode, size, time))
    }

    fn describe(&self, node: u64, mode: u32, size: u64, time: SystemTime) -> Attributes {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (uid, gid) = (self.spec.uid, self.spec.gid);
        let (seconds, nanoseconds) = (since.as_secs(), since.subsec_nanos());
        Attributes { node, size, seconds, nanoseconds, mode, uid, gid, valid_ms: KERNEL_TTL_MS }
    }

    async fn get_attributes(&self, node: u64) -> Answer {
        if !self.tree().is_folder(node) {
            let file = self.file(node)?;
            self.refresh(node, &file).await?;
        }
        self.attributes(node).map(Reply::Attributes)
    }

    /// Asks the store about a file again, if that was too long ago and nobody has it open.
    async fn refresh(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        {
            let state = file.state();
            let fresh = |since: Instant| since.elapsed() < self.spec.metadata_ttl();
            let open = state.opens > 0 && state.stored.is_some();
            if state.local.is_some() || open || state.known_since.is_some_and(fresh) {
                return Ok(());
            }
        }
        self.revalidate(node, file).await
    }

    /// Asks the store about a file.
    async fn revalidate(&self, node: u64, file: &FileNode) -> Result<(), Errno> {
        let (folder, name) = self.parent_and_name(node)?;
        let requested_at = Instant::now();
        match self.find(folder, &name).await? {
            Some(Entry::File(meta)) => file.learn(&meta, requested_at),
            Some(Entry::Folder) | None => return Err(Errno::NOENT),
        }
        Ok(())
    }

    fn parent_and_name(&self, node: u64) -> Result<(u64, Arc<str>), Errno> {
        let tree = self.tree();
        tree.path(node).ok_or(Errno::STALE)?;
        let node = tree.node(node).ok_or(Errno::STALE)?;
        Ok((node.parent, Arc::clone(&node.name)))
    }

    /// Tells the warden what became of a change.
    fn report_change(
        &self,
        op: &str,
        path: String,
        to: Option<String>,
        size: u64,
        outcome: &Result<(), Errno>,
    ) {
        let outcome = match outcome {
            Ok(()) => "ok".to_owned(),
            Err(errno) => errno.to_string(),
        };
        let event =
            Event { mount: self.spec.id.clone(), op: op.to_owned(), path, to, size, outcome };
        if self.channel.send(&Report::Event(event)).is_err() {
            self.counters.lost();
        }
    }

    /// Stores everything that was written and is not stored yet.
    pub(crate) async fn store_everything(&self) {
        let files = self.tree().files_below(ROOT);
        for (node, file) in files {
            let _ = self.persist(node, &file).await;
        }
    }

    /// Keeps a file of `size` bytes that could not be stored, until it is stored after all: whether it is kept.
    fn keep(&self, node: u64, content: Option<&File>, size: u64) -> bool {
        let path = self.tree().path(node);
        path.is_some_and(|path| self.staging.keep(path, content, size))
    }

    /// Keeps what could not be stored, and says so. Nothing may be storing it any more.
    pub(crate) fn keep_unstored(&self) {
        let files = self.tree().files_below(ROOT);
        let is_unstored = |file: &FileNode| {
            let state = file.state();
            state.dirty && !state.unlinked
        };
        let unstored = files.into_iter().filter(|(_, file)| is_unstored(file));
        for (node, file) in unstored {
            // Whoever stored it still was ended before; whoever writes to it is done in a moment.
            let content = lock_in_time(&file.content);
            let content = content.as_ref().and_then(|content| content.as_ref());
            self.keep(node, content, file.staged());
        }
        for (path, kept) in self.staging.kept() {
            let report = Report::Unstored { mount: self.id().to_owned(), path, kept };
            // Whoever wants to know is there, or nobody is.
            drop(self.channel.send(&report));
        }
    }
}

/// The content of a file, if nobody holds it for long.
fn lock_in_time<T>(content: &tokio::sync::Mutex<T>) -> Option<tokio::sync::MutexGuard<'_, T>> {
    let deadline = Instant::now() + WRITE;
    loop {
        match content.try_lock() {
            Ok(content) => return Some(content),
            Err(_) if Instant::now() < deadline => std::thread::yield_now(),
            Err(_) => return None,
        }
    }
}

fn changes(op: &Op) -> bool {
    const WRITES: u32 = 0o3;
    const TRUNCATES: u32 = 0o1000;
    match op {
        Op::SetAttr { .. }
        | Op::MakeNode { .. }
        | Op::MakeFolder { .. }
        | Op::Unlink { .. }
        | Op::RemoveFolder { .. }
        | Op::Rename { .. }
        | Op::Create { .. }
        | Op::Write { .. } => true,
        Op::Open { flags } => flags & (WRITES | TRUNCATES) != 0,
        _ => false,
    }
}
