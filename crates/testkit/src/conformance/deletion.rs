//! Nothing is removed that nobody asked to be removed.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bastide::backend::{Expose, KeepAlive, KeepAliveHandle};
use bastide::events::{AUDIT_FOLDER, AuditOptions, EventOptions};
use bastide::model::Manifest;
use bastide::model::state::BackendState;
use bastide::{
    Backend, Booted, Client, Connection, CreateOptions, GuestPath, Machine, MachineSpec,
    MachineStatus, Orphans, SessionFolder, SessionId, SessionStatus, SweepMode,
};

use crate::suite::{Context, Outcome, Trial, TrialError, client_for, say, skip};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    keeps_a_session_whose_resume_cannot_be_put_on_record,
    keeps_a_session_whose_resume_fails_at_the_last_moment,
    removes_no_folder_of_the_host_that_a_workspace_names,
];

type Hook = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// A backend like another, but something happens at the last moment of a start: when the session is on
/// record, and is let go of.
struct InterceptedBackend {
    inner: Arc<dyn Backend>,
    hook: Hook,
}

struct InterceptedKeepAlive {
    inner: Mutex<Option<KeepAlive>>,
    hook: Hook,
}

impl KeepAliveHandle for InterceptedKeepAlive {
    fn release(&self) -> io::Result<()> {
        (self.hook)()?;
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        inner.map_or(Ok(()), |keep_alive| keep_alive.release().map_err(io::Error::other))
    }
}

impl std::fmt::Debug for InterceptedBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Backend for InterceptedBackend {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn has_host_files(&self) -> bool {
        self.inner.has_host_files()
    }

    fn home(&self) -> &Path {
        self.inner.home()
    }

    async fn boot(&self, folder: &SessionFolder, spec: &MachineSpec) -> bastide::Result<Booted> {
        let booted = self.inner.boot(folder, spec).await?;
        let held = |keep_alive| InterceptedKeepAlive {
            inner: Mutex::new(Some(keep_alive)),
            hook: Arc::clone(&self.hook),
        };
        Ok(Booted {
            keep_alive: booted.keep_alive.map(|keep_alive| KeepAlive::new(held(keep_alive))),
            ..booted
        })
    }

    async fn connect(&self, machine: &Machine) -> bastide::Result<Connection> {
        self.inner.connect(machine).await
    }

    async fn inspect(&self, machine: &Machine) -> bastide::Result<MachineStatus> {
        self.inner.inspect(machine).await
    }

    async fn stop(&self, machine: &Machine) -> bastide::Result<()> {
        self.inner.stop(machine).await
    }

    async fn destroy(&self, machine: &Machine) -> bastide::Result<()> {
        self.inner.destroy(machine).await
    }

    async fn discard(&self, folder: &Path) -> bastide::Result<()> {
        self.inner.discard(folder).await
    }

    fn is_own(&self, machine: &Machine) -> bastide::Result<bool> {
        self.inner.is_own(machine)
    }

    async fn remove_tree(&self, folder: &Path) -> bastide::Result<()> {
        self.inner.remove_tree(folder).await
    }

    async fn sweep(&self, mode: SweepMode) -> bastide::Result<Orphans> {
        self.inner.sweep(mode).await
    }

    fn root(&self, machine: &Machine) -> Option<GuestPath> {
        self.inner.root(machine)
    }

    fn stored(&self, machine: &Machine) -> BackendState {
        self.inner.stored(machine)
    }

    fn unmade(&self) -> BackendState {
        self.inner.unmade()
    }

    fn expose(&self) -> Option<&dyn Expose> {
        self.inner.expose()
    }

    fn keeps_files(&self) -> bool {
        self.inner.keeps_files()
    }
}

fn meddled(context: &Context, hook: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Client {
    let inner = Arc::clone(&context.backend);
    client_for(Arc::new(InterceptedBackend { inner, hook: Arc::new(hook) }))
}

/// A stopped session with a file in it.
async fn stopped(context: &Context) -> Result<SessionId, TrialError> {
    let options = CreateOptions::default().untied();
    let session = context.client().create(&Manifest::default(), options).await?;
    let id = session.id().clone();
    say(&session, "echo kept > file").await?;
    drop(session);
    context.client().stop(&id).await?;
    Ok(id)
}

async fn assert_whole(context: &Context, id: &SessionId) -> Outcome {
    let client = context.client();
    assert_eq!(client.inspect(id).await?.status, SessionStatus::Stopped);
    let session = client.resume(id).await?;
    assert_eq!(say(&session, "cat file").await?, "kept\n");
    Ok(session.delete().await?)
}

/// Makes the audit log of a session something that cannot be written to, as it happens on the way.
async fn keeps_a_session_whose_resume_cannot_be_put_on_record(context: Context) -> Outcome {
    let id = stopped(&context).await?;
    let log = context.backend.home().join(AUDIT_FOLDER).join(id.as_str());
    let (broken, moved) = (log.clone(), log.with_extension("moved"));
    let away = moved.clone();
    let client = meddled(&context, move || {
        std::fs::rename(&broken, &away)?;
        std::fs::write(&broken, "no folder")
    });
    let client = client.with_events(EventOptions::new().audit(AuditOptions::default()));
    let resumed = client.resume(&id).await.map(drop);
    if !moved.exists() {
        context.client().delete(&id).await?;
        return Err(skip("nobody lets go of such a session"));
    }
    assert!(resumed.is_err(), "it was not put on record, and given out all the same");
    std::fs::remove_file(&log)?;
    std::fs::rename(&moved, &log)?;
    assert_whole(&context, &id).await
}

async fn keeps_a_session_whose_resume_fails_at_the_last_moment(context: Context) -> Outcome {
    let id = stopped(&context).await?;
    let client = meddled(&context, || Err(io::ErrorKind::BrokenPipe.into()));
    match client.resume(&id).await {
        Err(error) => assert_eq!(error.kind(), bastide::ErrorKind::BackendLost, "{error}"),
        Ok(session) => {
            session.delete().await?;
            return Err(skip("nobody lets go of such a session"));
        }
    }
    assert_whole(&context, &id).await
}

/// Commands write what is in a workspace, so nothing in it is believed when it is removed.
async fn removes_no_folder_of_the_host_that_a_workspace_names(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Err(skip("no workspace is a folder of this host"));
    }
    let victim = tempfile::tempdir()?;
    std::fs::write(victim.path().join("file"), "kept")?;
    let options = CreateOptions::default().unix_local();
    let session = context.client().create(&Manifest::default(), options).await?;
    let root = session.root().as_str().to_owned();
    let victims = victim.path().display();
    say(
        &session,
        &format!("for name in outside groups; do printf %s {victims} > {root}/$name; done"),
    )
    .await?;
    session.delete().await?;
    assert!(!Path::new(&root).exists(), "the workspace goes with its session");
    assert_eq!(std::fs::read_to_string(victim.path().join("file"))?, "kept");
    Ok(())
}
