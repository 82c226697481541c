//! Saving and restoring workspaces, in this project's library.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bastide::snapshot::store::Store;
use bastide::{Client, Command, Session};

use crate::ours::{ensure, failed, new_session, session_with};
use crate::workload::Workload;

/// What a snapshot is called.
const NAME: &str = "saved";

/// Sessions whose workspaces are saved, and the stores they are saved in.
#[derive(Debug)]
pub(crate) struct Snapshots {
    client: Client,
    folder: PathBuf,
    loaded: HashMap<Workload, Loaded>,
}

/// A session with something in its workspace, and a store that has it.
#[derive(Debug)]
struct Loaded {
    session: Session,
    store: Store,
    changes: usize,
}

impl Snapshots {
    pub(crate) fn new(client: Client, folder: PathBuf) -> Self {
        Self { client, folder, loaded: HashMap::new() }
    }

    pub(crate) async fn end(self) -> io::Result<()> {
        for loaded in self.loaded.into_values() {
            loaded.session.delete().await.map_err(failed)?;
        }
        Ok(())
    }

    async fn loaded(&mut self, work: Workload) -> io::Result<&mut Loaded> {
        if !self.loaded.contains_key(&work) {
            let session = session_with(&self.client, work).await?;
            let store = Store::open(self.folder.join(work.to_string())).map_err(failed)?;
            session.snapshots(&store).save(NAME, None).await.map_err(failed)?;
            self.loaded.insert(work, Loaded { session, store, changes: 0 });
        }
        self.loaded.get_mut(&work).ok_or_else(|| io::Error::other("nothing was loaded"))
    }

    /// Into a store that has nothing yet.
    pub(crate) async fn save(&mut self, work: Workload) -> io::Result<Duration> {
        let folder = self.folder.join("new");
        let loaded = self.loaded(work).await?;
        let store = Store::open(&folder).map_err(failed)?;
        let started = Instant::now();
        let saved = loaded.session.snapshots(&store).save(NAME, None).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(saved.bytes_read >= work.bytes(), "every file read")?;
        fs::remove_dir_all(folder)?;
        Ok(took)
    }

    pub(crate) async fn save_again(&mut self, work: Workload) -> io::Result<Duration> {
        let loaded = self.loaded(work).await?;
        if let Workload::Files(_) = work {
            // One file of each folder.
            let line = format!(
                "for k in $(seq 0 99); do echo changed >> project/$k/$((k + {} * 100)); done",
                loaded.changes % 100
            );
            let changed = loaded.session.exec(Command::shell(&line)).await.map_err(failed)?;
            ensure(changed.exit.code == 0, "a change")?;
            loaded.changes += 1;
        }
        let Loaded { session, store, .. } = loaded;
        let started = Instant::now();
        let saved = session.snapshots(store).save(NAME, None).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(saved.info.bytes >= work.bytes(), "every file")?;
        Ok(took)
    }

    pub(crate) async fn restore(&mut self, work: Workload) -> io::Result<Duration> {
        let session = new_session(&self.client).await?;
        let store = self.loaded(work).await?.store.clone();
        let started = Instant::now();
        let restored = session.snapshots(&store).restore(NAME, None).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(restored.info.bytes >= work.bytes(), "every file")?;
        session.delete().await.map_err(failed)?;
        Ok(took)
    }
}
