//! Points of workspaces, in this project's library.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use bastide::{Client, Command, CreateOptions, JournalOptions, Session};
use futures::future::try_join_all;

use crate::ours::{ensure, failed, session_as};
use crate::workload::Workload;

/// What a fork begins with that is measured up to its first output.
const FEW: Workload = Workload::Files(1_000);

/// Sessions with something in their workspaces, of which points are made.
#[derive(Debug)]
pub(crate) struct Points {
    client: Client,
    /// By what is in them, and whether every command is a point.
    loaded: HashMap<(Workload, bool), Loaded>,
}

#[derive(Debug)]
struct Loaded {
    session: Session,
    changes: usize,
}

impl Points {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, loaded: HashMap::new() }
    }

    pub(crate) async fn end(self) -> io::Result<()> {
        for loaded in self.loaded.into_values() {
            loaded.session.delete().await.map_err(failed)?;
        }
        Ok(())
    }

    /// A session with a point of what is in it.
    async fn loaded(&mut self, work: Workload, journal: bool) -> io::Result<&mut Loaded> {
        let key = (work, journal);
        if !self.loaded.contains_key(&key) {
            let points = JournalOptions::default();
            let points = if journal { points.commands() } else { points };
            let options = CreateOptions::default().journal(points);
            let session = session_as(&self.client, work, options).await?;
            session.journal().checkpoint(None).await.map_err(failed)?;
            self.loaded.insert(key, Loaded { session, changes: 0 });
        }
        self.loaded.get_mut(&key).ok_or_else(|| io::Error::other("nothing was loaded"))
    }

    pub(crate) async fn checkpoint(&mut self, work: Workload) -> io::Result<Duration> {
        let loaded = self.loaded(work, false).await?;
        let started = Instant::now();
        let made = loaded.session.journal().checkpoint(None).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(made.bytes >= work.bytes(), "every file")?;
        Ok(took)
    }

    pub(crate) async fn checkpoint_changed(&mut self, work: Workload) -> io::Result<Duration> {
        let loaded = self.loaded(work, false).await?;
        // One file of each folder.
        let line = format!(
            "for k in $(seq 0 99); do echo changed >> project/$k/$((k + {} * 100)); done",
            loaded.changes % 100
        );
        loaded.changes += 1;
        let changed = loaded.session.exec(Command::shell(&line)).await.map_err(failed)?;
        ensure(changed.exit.code == 0, "a change")?;
        let started = Instant::now();
        let made = loaded.session.journal().checkpoint(None).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(made.files_read >= 100, "every changed file")?;
        Ok(took)
    }

    pub(crate) async fn exec(&mut self, work: Workload) -> io::Result<Duration> {
        let loaded = self.loaded(work, true).await?;
        let started = Instant::now();
        let output = loaded.session.exec(Command::new(["/bin/true"])).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(output.exit.code == 0, "an exit code of 0")?;
        Ok(took)
    }

    pub(crate) async fn undo_file(&mut self, work: Workload) -> io::Result<Duration> {
        let loaded = self.loaded(work, true).await?;
        let line = "echo changed >> project/7/7";
        let changed = loaded.session.exec(Command::shell(line)).await.map_err(failed)?;
        ensure(changed.exit.code == 0, "a change")?;
        let started = Instant::now();
        let undone = loaded.session.journal().undo(1).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(undone.changes.changed == 1, "one file")?;
        Ok(took)
    }

    pub(crate) async fn fork(&mut self, work: Workload) -> io::Result<Duration> {
        let client = self.client.clone();
        let loaded = self.loaded(work, false).await?;
        let started = Instant::now();
        let forks = client.fork(&loaded.session, 1, None).await.map_err(failed)?;
        let took = started.elapsed();
        for fork in forks {
            fork.delete().await.map_err(failed)?;
        }
        Ok(took)
    }

    pub(crate) async fn forks(&mut self, count: usize) -> io::Result<Duration> {
        let client = self.client.clone();
        let loaded = self.loaded(FEW, false).await?;
        let started = Instant::now();
        let forks = client.fork(&loaded.session, count, None).await.map_err(failed)?;
        let all = forks.iter().map(|fork| fork.exec(Command::new(["echo", "hello"])));
        let outputs = try_join_all(all).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(outputs.iter().all(|output| output.stdout == b"hello\n"), "the first output")?;
        for fork in forks {
            fork.delete().await.map_err(failed)?;
        }
        Ok(took)
    }
}
