//! The content-addressed store of snapshots.
//!
//! Files are cut into chunks by their content. Each chunk is stored once, compressed, in a pack,
//! however many files and snapshots have it; each snapshot has a list of its entries. Everything is
//! named by the hash of its content, and verified when it is read.
//!
//! ```text
//! format          the version of the store's format
//! lock            held briefly for changes that concern every process
//! leases/         one locked file for each process that uses the store now
//! packs/          chunks; a pack gets its name once it is complete and on disk
//! aside/          packs that no snapshot needs, until no process can be reading them
//! snapshots/      one record each; renaming it into place makes a snapshot visible
//! points/         the same for points of journals, by session
//! cache/          attributes of files when they were last saved, by session
//! temporary/      incomplete files
//! ```

mod assemble;
mod cache;
mod chunk;
mod collect;
mod errors;
mod fail_points;
mod index;
mod pack;
mod pack_folders;
pub(crate) mod points;
mod reader;
mod record;
mod remote;
mod restore;
mod save;
mod session_snapshot;
mod tar;
mod tree;
#[doc(hidden)]
pub mod untrusted_bytes;
mod use_lock;
mod verify;
mod writer;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use bastide_model::PosixPath;
use bastide_proto::GuestPath;

use chunk::ChunkId;
use errors::failed;
use index::{Index, KnownPack, packs_in};
use pack_folders::PackFolders;
use reader::Reader;
use use_lock::UseLock;
use writer::Writer;

use crate::host::make_private;
use crate::link::Link;
use crate::snapshot::{Progress, Workspace};
use crate::{Error, ErrorKind, Result};

pub use collect::CollectReport;
pub use record::SnapshotInfo;
pub use remote::{Objects, PushReport};
pub use restore::RestoreReport;
pub use save::{SaveOptions, SaveReport};
pub use session_snapshot::StoreSnapshot;
pub use verify::{SnapshotHealth, VerifyReport};

/// What the file `format` says.
const FORMAT: &str = "bastide snapshot store 1\n";

/// A tree of files in a live session, to be saved or restored.
#[derive(Clone)]
pub struct Tree<'a> {
    /// The link to the guest.
    pub link: &'a dyn Link,
    /// The top folder of the tree.
    pub root: &'a GuestPath,
    /// The session's id. The store caches the attributes of its files under this id, so that only
    /// changed files are read the next time.
    pub session: Option<String>,
    /// What is not saved: paths relative to the root, each with everything below it.
    pub left_out: Vec<Vec<u8>>,
    /// What a restore leaves where it is: paths as above.
    pub kept: Vec<Vec<u8>>,
    /// Whether to refuse a restore over existing files.
    pub only_empty: bool,
    /// Whether to read every file when saving, and ignore the cache.
    pub full_read: bool,
    /// Receives the progress.
    pub progress: Option<&'a (dyn Fn(Progress) + Send + Sync)>,
}

impl<'a> Tree<'a> {
    /// A whole tree.
    pub fn new(link: &'a dyn Link, root: &'a GuestPath) -> Self {
        let (left_out, kept) = (Vec::new(), Vec::new());
        Self {
            link,
            root,
            session: None,
            left_out,
            kept,
            only_empty: false,
            full_read: false,
            progress: None,
        }
    }

    /// The workspace of a session. A folder that belongs to the caller is never restored over
    /// existing files.
    #[must_use]
    pub fn of(workspace: &'a Workspace<'a>) -> Self {
        let bytes = |paths: &[PosixPath]| -> Vec<Vec<u8>> {
            paths.iter().map(|path| path.as_str().as_bytes().to_vec()).collect()
        };
        Self {
            link: workspace.link(),
            root: workspace.root(),
            session: Some(workspace.session().to_string()),
            left_out: bytes(workspace.left_out()),
            kept: bytes(workspace.kept_paths()),
            only_empty: workspace.must_be_empty(),
            full_read: false,
            progress: workspace.progress,
        }
    }

    fn report(&self, progress: Progress) {
        if let Some(on_progress) = self.progress {
            on_progress(progress);
        }
    }
}

impl fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("root", self.root).finish_non_exhaustive()
    }
}

/// Does something that may block, on another thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            Err(Error::new(ErrorKind::Internal, "work on a snapshot was lost").with_source(error))
        }
    }
}

/// How many threads work on one snapshot at once.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(3)
}

/// A store of snapshots on this machine. Any number of processes may use it at once.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    home: PathBuf,
    /// The indexes of packs that were read before.
    index: Mutex<Option<Arc<Index>>>,
}

impl Store {
    /// Opens the store in a folder. A new store is created when something is first saved.
    ///
    /// # Errors
    ///
    /// Fails if the folder cannot be used, or holds a store of an unknown format.
    pub fn open(home: impl Into<PathBuf>) -> Result<Self> {
        let home = home.into();
        let format = home.join("format");
        match fs::read_to_string(&format) {
            Ok(text) if text == FORMAT => {}
            Ok(_) => {
                let message = format!("{} is no snapshot store of a known form", home.display());
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            // It is made when there is something to put into it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &format, error)),
        }
        Ok(Self { inner: Arc::new(Inner { home, index: Mutex::default() }) })
    }

    /// The folder of the store.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.inner.home
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.inner.home.join(name)
    }

    fn packs(&self) -> PathBuf {
        self.folder("packs")
    }

    fn lock(&self) -> Result<File> {
        use_lock::lock(&self.folder("lock"))
    }

    fn use_lock(&self) -> Result<UseLock> {
        if !self.folder("format").exists() {
            make(&self.inner.home)?;
        }
        UseLock::take(&self.folder("leases"))
    }

    /// Where packs are, and where those that were put aside are.
    fn pack_folders(&self) -> PackFolders {
        PackFolders::new(self.packs(), self.folder("aside"), self.folder("lock"))
    }

    /// Where every chunk is now. Whoever relies on it takes a use lock before.
    fn index(&self) -> Result<Arc<Index>> {
        let packs = {
            let _lock = self.lock()?;
            packs_in(&self.packs())?
        };
        self.index_of(&packs, &self.pack_folders())
    }

    /// Where every chunk of these packs is.
    fn index_of(&self, packs: &[ChunkId], places: &PackFolders) -> Result<Arc<Index>> {
        let known = || self.inner.index.lock().unwrap_or_else(PoisonError::into_inner);
        // Not held meanwhile: a pack that is not found is looked for under the store's lock, and whoever has that may
        // be here, too.
        let before = known().clone();
        let damaged_copies = self.damaged_copies()?;
        let index = Arc::new(Index::read(packs, places, before.as_deref(), &damaged_copies)?);
        *known() = Some(Arc::clone(&index));
        Ok(index)
    }

    /// Chunks that were found to be damaged, each with its pack: they do not count as being there, so
    /// that whoever has their content brings it again.
    fn damaged_copies(&self) -> Result<Vec<(ChunkId, ChunkId)>> {
        let path = self.folder("damaged");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read", &path, error)),
        };
        let pair = |line: &str| -> Option<(ChunkId, ChunkId)> {
            let (pack, chunk) = line.split_once(' ')?;
            Some((pack.parse().ok()?, chunk.parse().ok()?))
        };
        let mut ids: Vec<_> = text.lines().filter_map(pair).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// What `look` finds in the store, and a reader that has everything this needs: nobody publishes a
    /// snapshot, or puts packs aside, between the one look and the other, and nothing that is there now
    /// goes away while the reader is held.
    fn reading<T>(&self, look: impl FnOnce() -> Result<T>) -> Result<(Reader, T)> {
        let use_lock = self.use_lock()?;
        let (packs, found) = {
            let _lock = self.lock()?;
            let found = look()?;
            // What is aside comes first, so that a copy that is in its place counts more.
            let mut packs = packs_in(&self.folder("aside"))?;
            packs.extend(packs_in(&self.packs())?);
            (packs, found)
        };
        let places = self.pack_folders();
        let index = self.index_of(&packs, &places)?;
        Ok((Reader::new(index, Some(use_lock), places), found))
    }

    fn writer(&self) -> Result<Writer> {
        let use_lock = self.use_lock()?;
        let index = self.index()?;
        Ok(Writer::new(index, use_lock, self.packs(), self.folder("temporary")))
    }

    /// All snapshots by name; for a damaged one, the error.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Result<SnapshotInfo>)>> {
        let folder = self.folder("snapshots");
        let mut all = Vec::new();
        for name in record::names(&folder)? {
            match record::read(&folder, &name) {
                Err(error) if error.is_not_found() => {}
                read => all.push((name, read)),
            }
        }
        Ok(all)
    }

    /// Information about one snapshot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none with that name.
    pub fn inspect(&self, name: &str) -> Result<SnapshotInfo> {
        record::read(&self.folder("snapshots"), name)
    }

    /// Whether there is a snapshot with that name, damaged or not.
    fn has(&self, name: &str) -> Result<bool> {
        record::check_name(name)?;
        let path = self.folder("snapshots").join(record::file_name(name));
        path.try_exists().map_err(|error| failed("read", &path, error))
    }

    /// Removes a snapshot. Chunks that no other snapshot needs stay on disk until garbage is
    /// collected. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        record::check_name(name)?;
        let folder = self.folder("snapshots");
        let path = folder.join(record::file_name(name));
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(&folder).map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("remove", &path, error)),
        }
    }

    /// Makes a snapshot visible: everything it needs is on the disk and stays there.
    fn publish(&self, writer: &Writer, new: &[Arc<KnownPack>], info: &SnapshotInfo) -> Result<()> {
        self.publish_in(&self.folder("snapshots"), writer, new, info)
    }

    /// The same in another folder of records.
    fn publish_in(
        &self,
        folder: &Path,
        writer: &Writer,
        new: &[Arc<KnownPack>],
        info: &SnapshotInfo,
    ) -> Result<()> {
        let bytes = record::encode(info)?;
        let temporary = self.folder("temporary").join(format!("{}.record", writer.use_lock.name()));
        let writing = |error| failed("write", &temporary, error);
        let mut file = File::create_new(&temporary).map_err(writing)?;
        file.write_all(&bytes).map_err(writing)?;
        file.sync_all().map_err(writing)?;
        drop(file);
        let path = folder.join(record::file_name(&info.name));
        let lock = self.lock()?;
        // Whoever collects garbage may have put aside what looked unused: it is not.
        let packs = self.packs();
        let mut brought_back = false;
        for pack in writer.index.packs.iter().chain(new) {
            let name = pack::pack_name(pack.id);
            let place = packs.join(&name);
            let aside = self.folder("aside").join(&name);
            // One that cannot be looked at may be aside: a snapshot without it would be lost with it.
            let looking = |error| failed("look for", &place, error);
            if !place.try_exists().map_err(looking)? && aside.try_exists().map_err(looking)? {
                fs::rename(&aside, &place).map_err(|error| failed("bring back", &place, error))?;
                brought_back = true;
            }
        }
        if brought_back {
            sync_folder(&packs)?;
        }
        fs::rename(&temporary, &path).map_err(|error| failed("name", &path, error))?;
        sync_folder(folder)?;
        drop(lock);
        Ok(())
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Makes a new store. Several processes may do so at once.
fn make(home: &Path) -> Result<()> {
    let folders = ["leases", "packs", "aside", "snapshots", "cache", "temporary"];
    for folder in [home.to_owned()].into_iter().chain(folders.map(|name| home.join(name))) {
        let made = make_private(&folder);
        made.map_err(|error| failed("make", &folder, error))?;
    }
    let temporary = home.join("temporary").join(uuid::Uuid::new_v4().simple().to_string());
    let format = home.join("format");
    let written = || -> io::Result<()> {
        let mut file = File::create_new(&temporary)?;
        file.write_all(FORMAT.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &format)
    };
    written().map_err(|error| failed("write", &format, error))?;
    sync_folder(home)
}

/// Makes sure that the names in a folder are on the disk.
fn sync_folder(folder: &Path) -> Result<()> {
    crate::host::sync_folder(folder).map_err(|error| failed("write", folder, error))
}

#[cfg(test)]
mod tests;
