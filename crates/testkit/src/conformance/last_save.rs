//! The last save of a session whose files end with its machine: nobody is told that something was written which is lost.
//!
//! Every backend is taken for one whose files end, and a keeper of snapshots holds the save in the middle.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bastide::backend::Expose;
use bastide::model::Manifest;
use bastide::model::state::BackendState;
use bastide::snapshot::{Saved, SnapshotStorage, SnapshotTypes, Workspace};
use bastide::{
    Backend, Booted, Client, Condition, Connection, CreateOptions, ErrorKind, GuestPath, Machine,
    MachineSpec, MachineStatus, Orphans, Session, SessionFolder, SessionId, SessionStatus,
    SweepMode,
};
use tokio::sync::Notify;

use crate::suite::{Context, Outcome, Trial, TrialError, say};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    loses_nothing_that_is_written_while_it_is_saved_to_stop,
    loses_nothing_that_is_written_while_it_is_saved_to_close,
    goes_on_when_its_last_save_fails_or_is_interrupted,
];

/// A keeper that saves nothing, and takes as long as somebody wants.
#[derive(Debug, Default)]
struct SlowKeeper {
    begun: Notify,
    may_end: Notify,
    fails: AtomicBool,
}

#[async_trait]
impl SnapshotStorage for SlowKeeper {
    async fn is_restorable(&self, _: &Workspace<'_>) -> bastide::Result<bool> {
        Ok(false)
    }

    async fn save(&self, _: &Workspace<'_>) -> bastide::Result<Saved> {
        self.begun.notify_one();
        self.may_end.notified().await;
        match self.fails.load(Ordering::Acquire) {
            true => Err(bastide::Error::new(ErrorKind::Io, "nothing can be saved")),
            false => Ok(Saved::default()),
        }
    }

    async fn restore(&self, _: &Workspace<'_>) -> bastide::Result<()> {
        Ok(())
    }
}

/// A backend like another, but files end with their machines.
#[derive(Debug)]
struct ForgetfulBackend(Arc<dyn Backend>);

#[async_trait]
impl Backend for ForgetfulBackend {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn has_host_files(&self) -> bool {
        self.0.has_host_files()
    }

    fn home(&self) -> &Path {
        self.0.home()
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> bastide::Result<Booted> {
        self.0.boot(folder, spec).await
    }

    async fn connect(&self, machine: &Machine) -> bastide::Result<Connection> {
        self.0.connect(machine).await
    }

    async fn inspect(&self, machine: &Machine) -> bastide::Result<MachineStatus> {
        self.0.inspect(machine).await
    }

    async fn stop(&self, machine: &Machine) -> bastide::Result<()> {
        self.0.stop(machine).await
    }

    async fn destroy(&self, machine: &Machine) -> bastide::Result<()> {
        self.0.destroy(machine).await
    }

    async fn discard(&self, folder: &Path) -> bastide::Result<()> {
        self.0.discard(folder).await
    }

    fn is_own(&self, machine: &Machine) -> bastide::Result<bool> {
        self.0.is_own(machine)
    }

    async fn remove_tree(&self, folder: &Path) -> bastide::Result<()> {
        self.0.remove_tree(folder).await
    }

    async fn sweep(&self, mode: SweepMode) -> bastide::Result<Orphans> {
        self.0.sweep(mode).await
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        self.0.root(machine)
    }

    fn stored(&self, machine: &Machine) -> BackendState {
        self.0.stored(machine)
    }

    fn unmade(&self) -> BackendState {
        self.0.unmade()
    }

    fn expose(&self) -> Option<&dyn Expose> {
        self.0.expose()
    }

    fn keeps_files(&self) -> bool {
        false
    }
}

/// A client of such a backend, a session of it, and somebody else who uses that.
struct Scene {
    keeper: Arc<SlowKeeper>,
    client: Client,
    session: Session,
    other: Client,
    attached: Session,
}

impl Scene {
    async fn new(context: &Context) -> Result<Self, TrialError> {
        let keeper = Arc::new(SlowKeeper::default());
        let kept = Arc::clone(&keeper);
        let types = SnapshotTypes::default()
            .with("noop", move |_| Ok(Arc::clone(&kept) as Arc<dyn SnapshotStorage>));
        let backend = Arc::new(ForgetfulBackend(Arc::clone(&context.backend)));
        let client = Client::new(backend).with_snapshot_types(types);
        let snapshot = bastide::model::snapshot::Snapshot::Noop { id: "none".to_owned() };
        let options =
            CreateOptions::default().detached().snapshot(bastide::SnapshotChoice::Named(snapshot));
        let session = client.create(&Manifest::default(), options).await?;
        let other = context.client();
        let attached = other.attach(session.id()).await?;
        Ok(Self { keeper, client, session, other, attached })
    }

    fn id(&self) -> &SessionId {
        self.session.id()
    }

    /// In the middle of the last save: nobody comes in, and nobody who is in has anything done.
    async fn try_to_write(&self) -> Outcome {
        self.keeper.begun.notified().await;
        let late = self.other.attach(self.id()).await.map(drop);
        let written = say(&self.attached, "echo late > late").await;
        let status = self.other.inspect(self.id()).await?.status;
        self.keeper.may_end.notify_one();
        let error = late.err().ok_or("somebody could attach to it")?;
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        let being_stopped = Condition::SessionBeingStopped(self.id().to_string());
        assert_eq!(error.condition(), Some(&being_stopped), "{error}");
        assert!(written.is_err(), "a command was told to have written what is not saved");
        assert_eq!(status, SessionStatus::Stopping);
        Ok(())
    }
}

async fn loses_nothing_that_is_written_while_it_is_saved_to_stop(context: Context) -> Outcome {
    let scene = Scene::new(&context).await?;
    let (stopped, tried) = tokio::join!(scene.client.stop(scene.id()), scene.try_to_write());
    tried?;
    stopped?;
    assert_eq!(scene.other.inspect(scene.id()).await?.status, SessionStatus::Stopped);
    assert!(scene.other.delete(scene.id()).await?);
    Ok(())
}

async fn loses_nothing_that_is_written_while_it_is_saved_to_close(context: Context) -> Outcome {
    let scene = Scene::new(&context).await?;
    let (closed, tried) = tokio::join!(scene.session.close(), scene.try_to_write());
    tried?;
    closed?;
    assert_eq!(scene.other.inspect(scene.id()).await?.status, SessionStatus::Stopped);
    assert!(scene.other.delete(scene.id()).await?);
    Ok(())
}

async fn goes_on_when_its_last_save_fails_or_is_interrupted(context: Context) -> Outcome {
    let scene = Scene::new(&context).await?;
    scene.keeper.fails.store(true, Ordering::Release);
    let (stopped, tried) = tokio::join!(scene.client.stop(scene.id()), scene.try_to_write());
    tried?;
    assert!(stopped.is_err(), "it was saved where nothing can be");
    assert_eq!(scene.other.inspect(scene.id()).await?.status, SessionStatus::Running);
    assert_eq!(say(&scene.attached, "echo on").await?, "on\n");
    {
        // Whoever is killed in the middle says nothing more.
        let stop = std::pin::pin!(scene.client.stop(scene.id()));
        tokio::select! {
            stopped = stop => return Err(format!("{stopped:?} without an end of the save").into()),
            () = scene.keeper.begun.notified() => {}
        }
    }
    let attached = scene.other.attach(scene.id()).await?;
    assert_eq!(say(&attached, "echo on").await?, "on\n");
    assert_eq!(scene.other.inspect(scene.id()).await?.status, SessionStatus::Running);
    assert!(scene.other.delete(scene.id()).await?);
    Ok(())
}
