//! This project's library, in one warm process.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bastide::events::{
    AuditOptions, Delivery, EventOptions, EventSource, JsonlOutbox, Operation as EventOf,
    OperationResult, SinkOptions,
};
use bastide::model::Manifest;
use bastide::{Backend, Client, Command, CreateOptions, OutputEvent, Process, Session, SessionId};
use bastide_docker::{DockerBackend, DockerOptions, EngineAddress};
use bastide_local::LocalBackend;
use bastide_testkit::engine::images;
use futures::future::try_join_all;

use crate::operation::Operation;
use crate::packages;
use crate::points::Points;
use crate::snapshots::Snapshots;
use crate::workload::Workload;

/// Sessions on this machine, with every wall up, and one that stays.
#[derive(Debug)]
pub(crate) struct BastideSubject {
    client: Client,
    live: Session,
    /// One more, with everything on record.
    audited: Session,
    terminal: Option<Process>,
    /// What operations work on and has been made.
    made: HashSet<String>,
    python: Option<PathBuf>,
    snapshots: Snapshots,
    points: Points,
}

impl BastideSubject {
    pub(crate) async fn start(folder: &Path, python: Option<&Path>) -> io::Result<Self> {
        let backend = LocalBackend::new(folder.join("bastide")).map_err(failed)?;
        Self::on(Arc::new(backend), folder.join("snapshots"), python).await
    }

    /// Containers of an image, on a daemon.
    pub(crate) async fn in_containers(folder: &Path, host: &str) -> io::Result<Self> {
        let address = EngineAddress::parse(host, None).map_err(failed)?;
        let options = DockerOptions::new(images::BASE);
        let backend = DockerBackend::new(folder.join("docker"), address, options);
        Self::on(Arc::new(backend.map_err(failed)?), folder.join("docker-snapshots"), None).await
    }

    async fn on(
        backend: Arc<dyn Backend>,
        stores: PathBuf,
        python: Option<&Path>,
    ) -> io::Result<Self> {
        let client = Client::new(backend);
        let live = new_session(&client).await?;
        let events = EventOptions::new().audit(AuditOptions::default());
        let audited = new_session(&client.clone().with_events(events)).await?;
        let python = python.map(Path::to_owned);
        let snapshots = Snapshots::new(client.clone(), stores);
        let points = Points::new(client.clone());
        let made = HashSet::new();
        Ok(Self { client, live, audited, terminal: None, made, python, snapshots, points })
    }

    pub(crate) async fn end(mut self) -> io::Result<()> {
        drop(self.terminal.take());
        self.snapshots.end().await?;
        self.points.end().await?;
        self.audited.delete().await.map_err(failed)?;
        self.live.delete().await.map_err(failed)
    }

    /// As [`measure`](Self::measure), with everything on record.
    pub(crate) async fn measure_audited(&self, operation: Operation) -> io::Result<Duration> {
        match operation {
            Operation::Exec => exec(&self.audited, 1).await,
            other => Err(io::Error::other(format!("`{other}` is not measured on record"))),
        }
    }

    pub(crate) async fn measure(&mut self, operation: Operation) -> io::Result<Duration> {
        match operation {
            Operation::Create => self.create().await,
            Operation::Delete => self.delete().await,
            Operation::Exec => exec(&self.live, 1).await,
            Operation::ExecMany(count) => exec(&self.live, count).await,
            Operation::Output(bytes) => self.output(bytes).await,
            Operation::Read(bytes) => self.read(bytes).await,
            Operation::Write(bytes) => self.write(bytes).await,
            Operation::List(count) => self.list(count).await,
            Operation::Echo => self.echo().await,
            Operation::Sessions(at_once) => self.sessions(at_once).await,
            Operation::FolderIn(work) => self.folder_in(work).await,
            Operation::Save(work) => self.snapshots.save(work).await,
            Operation::SaveAgain(work) => self.snapshots.save_again(work).await,
            Operation::Restore(work) => self.snapshots.restore(work).await,
            Operation::Events(count) => events(count).await,
            Operation::Install => self.install().await,
            Operation::Checkpoint(work) => self.points.checkpoint(work).await,
            Operation::CheckpointChanged(work) => self.points.checkpoint_changed(work).await,
            Operation::JournaledExec(work) => self.points.exec(work).await,
            Operation::UndoFile(work) => self.points.undo_file(work).await,
            Operation::Fork(work) => self.points.fork(work).await,
            Operation::Forks(count) => self.points.forks(count).await,
        }
    }

    async fn create(&self) -> io::Result<Duration> {
        let started = Instant::now();
        let session = new_session(&self.client).await?;
        let output = session.exec(Command::new(["echo", "hello"])).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(output.stdout == b"hello\n", "the first output")?;
        session.delete().await.map_err(failed)?;
        Ok(took)
    }

    async fn delete(&self) -> io::Result<Duration> {
        let session = new_session(&self.client).await?;
        let started = Instant::now();
        session.delete().await.map_err(failed)?;
        Ok(started.elapsed())
    }

    async fn output(&self, bytes: u64) -> io::Result<Duration> {
        let started = Instant::now();
        let command = Command::new(["head", "-c", &bytes.to_string(), "/dev/zero"]);
        let mut process = self.live.spawn(command).await.map_err(failed)?;
        let mut got = 0;
        loop {
            match process.next().await.map_err(failed)? {
                OutputEvent::Stdout(data) | OutputEvent::Stderr(data) => got += data.len(),
                OutputEvent::Exit(_) => break,
                OutputEvent::Lost(_) => {}
            }
        }
        let took = started.elapsed();
        ensure(u64::try_from(got) == Ok(bytes), "every byte")?;
        Ok(took)
    }

    async fn read(&mut self, bytes: u64) -> io::Result<Duration> {
        let path = format!("read-{bytes}");
        if self.made.insert(path.clone()) {
            self.live.files().write(&path, content(bytes)).await.map_err(failed)?;
        }
        let started = Instant::now();
        let read = self.live.files().read(&path).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(u64::try_from(read.len()) == Ok(bytes), "every byte")?;
        Ok(took)
    }

    async fn write(&self, bytes: u64) -> io::Result<Duration> {
        let content = content(bytes);
        let started = Instant::now();
        self.live.files().write(&format!("write-{bytes}"), content).await.map_err(failed)?;
        Ok(started.elapsed())
    }

    async fn list(&mut self, count: usize) -> io::Result<Duration> {
        let folder = format!("list-{count}");
        if self.made.insert(folder.clone()) {
            let line = format!("mkdir {folder} && cd {folder} && seq {count} | xargs touch");
            self.live.exec(Command::shell(&line)).await.map_err(failed)?;
        }
        let started = Instant::now();
        let entries = self.live.files().ls(&folder).await.map_err(failed)?;
        let took = started.elapsed();
        ensure(entries.len() >= count, "every entry")?;
        Ok(took)
    }

    async fn echo(&mut self) -> io::Result<Duration> {
        let mut terminal = match self.terminal.take() {
            Some(terminal) => terminal,
            None => {
                let command = Command::new(["cat"]).terminal(24, 80);
                self.live.spawn(command).await.map_err(failed)?
            }
        };
        let started = Instant::now();
        terminal.write("x").await.map_err(failed)?;
        let event = terminal.next().await.map_err(failed)?;
        let took = started.elapsed();
        let is_echo = matches!(&event, OutputEvent::Stdout(data) if **data == *b"x");
        ensure(is_echo, "the echo of a key")?;
        self.terminal = Some(terminal);
        Ok(took)
    }

    async fn sessions(&self, at_once: usize) -> io::Result<Duration> {
        let each = (16 / at_once).max(2);
        let started = Instant::now();
        let workers = (0..at_once).map(|_| async {
            for _ in 0..each {
                let session = new_session(&self.client).await?;
                session.exec(Command::new(["true"])).await.map_err(failed)?;
                session.delete().await.map_err(failed)?;
            }
            io::Result::Ok(())
        });
        try_join_all(workers).await?;
        let count = u32::try_from(each * at_once).unwrap_or(u32::MAX);
        Ok(started.elapsed() / count)
    }

    async fn folder_in(&self, work: Workload) -> io::Result<Duration> {
        let started = Instant::now();
        let session = session_with(&self.client, work).await?;
        let took = started.elapsed();
        let listed = session.files().ls("project").await.map_err(failed)?;
        ensure(listed.len() == 100, "every folder")?;
        session.delete().await.map_err(failed)?;
        Ok(took)
    }

    async fn install(&self) -> io::Result<Duration> {
        let python = self.python.as_deref().ok_or_else(|| io::Error::other("no interpreter"))?;
        let wheels = packages::make()?;
        // Its own name leads out of the folder it belongs to and must stay a link.
        let environment = python.parent().and_then(Path::parent).unwrap_or(python);
        let environment = environment.canonicalize()?;
        let python = environment.join("bin/python");
        let grant =
            |path: &Path| serde_json::json!({"path": path.to_string_lossy(), "read_only": true});
        let manifest =
            serde_json::json!({"extra_path_grants": [grant(&wheels), grant(&environment)]});
        let manifest: Manifest = bastide::model::lax::read(&manifest).map_err(failed)?;
        // As the command line does it: what is on the path is there inside, too.
        let options =
            CreateOptions::default().env(std::env::vars().filter(|(name, _)| name == "PATH"));
        let session = self.client.create(&manifest, options).await.map_err(failed)?;
        let target = Path::new(session.root().as_str()).join("packages");
        let command = Command::new(packages::install(&python, &wheels, &target));
        let started = Instant::now();
        let output = session.exec(command).await.map_err(failed)?;
        let took = started.elapsed();
        let said = format!("{:?}, {}", output.exit, String::from_utf8_lossy(&output.stderr));
        ensure(output.exit.code == 0, &format!("an installation: {said}"))?;
        session.delete().await.map_err(failed)?;
        Ok(took)
    }
}

async fn exec(session: &Session, count: usize) -> io::Result<Duration> {
    let started = Instant::now();
    let all = (0..count).map(|_| session.exec(Command::new(["/bin/true"])));
    let outputs = try_join_all(all).await.map_err(failed)?;
    let took = started.elapsed();
    ensure(outputs.iter().all(|output| output.exit.code == 0), "an exit code of 0")?;
    Ok(took)
}

async fn events(count: usize) -> io::Result<Duration> {
    let folder = tempfile::tempdir_in("/dev/shm")?;
    let options = SinkOptions::best_effort().delivery(Delivery::Async);
    let outbox = JsonlOutbox::new(folder.path().join("outbox")).options(options);
    let options = EventOptions::new().sink(outbox);
    let source = EventSource::new(&options, &SessionId::random()).map_err(failed)?;
    let started = Instant::now();
    for _ in 0..count / 2 {
        let reported = source.observe(EventOf::Running, async { Ok(true) }, |alive| {
            OperationResult::Running { alive: *alive }
        });
        reported.await.map_err(failed)?;
    }
    source.flush().await;
    let took = started.elapsed();
    let reported = source.stats().iter().map(|stats| stats.delivered).sum::<u64>();
    ensure(reported == count as u64, "every event")?;
    Ok(took / u32::try_from(count).unwrap_or(u32::MAX))
}

/// A session with a folder of the host in its workspace.
pub(crate) async fn session_with(client: &Client, work: Workload) -> io::Result<Session> {
    session_as(client, work, CreateOptions::default()).await
}

/// The same, made as these options say.
pub(crate) async fn session_as(
    client: &Client,
    work: Workload,
    mut options: CreateOptions,
) -> io::Result<Session> {
    let folder = work.make()?;
    let entry = serde_json::json!({"type": "local_dir", "src": folder.to_string_lossy()});
    let manifest = serde_json::json!({"entries": {"project": entry}});
    let manifest: Manifest = bastide::model::lax::read(&manifest).map_err(failed)?;
    options.base_dir = folder.parent().map(Path::to_owned);
    client.create(&manifest, options).await.map_err(failed)
}

pub(crate) async fn new_session(client: &Client) -> io::Result<Session> {
    client.create(&Manifest::default(), CreateOptions::default()).await.map_err(failed)
}

fn content(bytes: u64) -> Vec<u8> {
    vec![b'x'; usize::try_from(bytes).unwrap_or(usize::MAX)]
}

pub(crate) fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

pub(crate) fn ensure(holds: bool, what: &str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(io::Error::other(format!("there was not {what}"))) }
}
