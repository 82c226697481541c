//! Nothing is removed that nobody asked to be removed.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bastide::backend::{Expose, KeepAlive, KeepAliveHandle};
use bastide::events::{AUDIT_FOLDER, AuditOptions, EventOptions};
use bastide::model::Manifest;
use bastide::model::state::BackendState;
use bastide::{
    Backend, Booted, Client, Connection, CreateOptions, GuestPath, Machine, MachineSpec,
    MachineStatus, Orphans, SessionFolder, SessionId, SessionName, SessionStatus, SweepMode,
};
use bastide_proto::warden::DELETED_FOLDER;

use super::lifetime::until;
use crate::suite::{Context, Outcome, Trial, TrialError, client_for, say, skip, sweeping};
use crate::trials;

pub(super) const TRIALS: &[Trial] = trials![
    keeps_a_session_whose_resume_cannot_be_put_on_record,
    keeps_a_session_whose_resume_fails_at_the_last_moment,
    removes_no_folder_of_the_host_that_a_workspace_names,
    removes_no_folder_that_was_there_before_its_session,
    removes_a_workspace_elsewhere_though_its_removal_was_interrupted,
    leaves_no_workspace_elsewhere_when_its_owner_is_gone,
    lets_nobody_in_until_what_had_its_name_is_settled,
];

/// When something happens to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The last moment of a start: it is on record, and is let go of.
    Release,
    /// A folder elsewhere that was made for it is to be removed.
    RemoveTree,
    /// Its own folder is to be removed, with no machine on record.
    Discard,
}

type Hook = Arc<dyn Fn(Moment) -> io::Result<()> + Send + Sync>;

/// A backend like another, but something happens at some moments.
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
        (self.hook)(Moment::Release)?;
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
        (self.hook)(Moment::Discard)
            .map_err(|error| bastide::Error::new(bastide::ErrorKind::Io, error.to_string()))?;
        self.inner.discard(folder).await
    }

    fn is_own(&self, machine: &Machine) -> bastide::Result<bool> {
        self.inner.is_own(machine)
    }

    async fn remove_tree(&self, folder: &Path) -> bastide::Result<()> {
        (self.hook)(Moment::RemoveTree)
            .map_err(|error| bastide::Error::new(bastide::ErrorKind::Io, error.to_string()))?;
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

fn intercepted_client(
    context: &Context,
    at: Moment,
    hook: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) -> Client {
    let inner = Arc::clone(&context.backend);
    let hook = move |moment| if moment == at { hook() } else { Ok(()) };
    client_for(Arc::new(InterceptedBackend { inner, hook: Arc::new(hook) }))
}

/// A stopped session with a file in it.
async fn stopped(context: &Context) -> Result<SessionId, TrialError> {
    let options = CreateOptions::default().detached();
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
    let client = intercepted_client(&context, Moment::Release, move || {
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
    let client =
        intercepted_client(&context, Moment::Release, || Err(io::ErrorKind::BrokenPipe.into()));
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

/// It may be the workspace of a session in another home. Whoever is killed before the folder of a session that cannot be made
/// is removed comes no further than one who cannot remove it.
async fn removes_no_folder_that_was_there_before_its_session(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Err(skip("no workspace is a folder of this host"));
    }
    let _home = sweeping().await;
    let client = context.client();
    let id = SessionId::random();
    let root = std::env::temp_dir().join(format!("sandbox-local-{id}"));
    std::fs::create_dir(&root)?;
    std::fs::write(root.join("file"), "kept")?;
    let options = || CreateOptions::default().detached().unix_local().id(id.clone());
    let name: SessionName = format!("taken-{id}").parse()?;
    let holder = CreateOptions::default().name(name.clone());
    let named = client.create(&Manifest::default(), holder).await?;
    let refused = client.create(&Manifest::default(), options().name(name)).await;
    assert!(refused.is_err(), "two sessions have one name");
    assert!(root.join("file").exists(), "removed with a session whose name was taken");
    named.delete().await?;
    for is_swept in [false, true] {
        let interrupted =
            intercepted_client(
                &context,
                Moment::Discard,
                || Err(io::ErrorKind::Interrupted.into()),
            );
        let refused = interrupted.create(&Manifest::default(), options()).await;
        assert!(refused.is_err(), "the folder of somebody else is a workspace");
        match is_swept {
            true => drop(client.sweep().await?),
            false => assert!(client.delete(&id).await?, "it was not interrupted"),
        }
        assert!(client.inspect(&id).await.is_err(), "the session is left");
        assert!(root.join("file").exists(), "removed with a session that was never made");
    }
    Ok(std::fs::remove_dir_all(&root)?)
}

/// Whoever is killed between two steps of a removal comes no further than one whose next step fails.
async fn removes_a_workspace_elsewhere_though_its_removal_was_interrupted(
    context: Context,
) -> Outcome {
    if !context.backend.has_host_files() {
        return Err(skip("no workspace is a folder of this host"));
    }
    for is_stopped in [false, true] {
        let options = CreateOptions::default().detached().unix_local();
        let session = context.client().create(&Manifest::default(), options).await?;
        let (id, root) = (session.id().clone(), session.root().as_str().to_owned());
        say(&session, "echo private > file").await?;
        drop(session);
        if is_stopped {
            context.client().stop(&id).await?;
        }
        let client = intercepted_client(&context, Moment::RemoveTree, || {
            Err(io::ErrorKind::Interrupted.into())
        });
        assert!(client.delete(&id).await.is_err(), "nothing was interrupted");
        assert!(Path::new(&root).exists(), "it was removed all the same");
        assert!(context.client().delete(&id).await?, "nobody knows of the rest any more");
        assert!(!Path::new(&root).exists(), "the workspace is left");
    }
    Ok(())
}

/// Nobody is there who knows what is on record of it but its warden.
async fn leaves_no_workspace_elsewhere_when_its_owner_is_gone(context: Context) -> Outcome {
    if !context.backend.has_host_files() {
        return Err(skip("no workspace is a folder of this host"));
    }
    let options = CreateOptions::default().unix_local();
    let session = context.client().create(&Manifest::default(), options).await?;
    let (id, root) = (session.id().clone(), session.root().as_str().to_owned());
    say(&session, "mkdir -p a/b; echo private > a/b/file").await?;
    drop(session);
    until(&context.client(), &id, None, Duration::from_secs(20)).await?;
    assert!(!Path::new(&root).exists(), "the workspace is left");
    Ok(())
}

/// Whoever settles what a lease deleted removes what the home keeps under the name: nobody has the name meanwhile.
async fn lets_nobody_in_until_what_had_its_name_is_settled(context: Context) -> Outcome {
    let id = SessionId::random();
    let notes = context.backend.home().join(DELETED_FOLDER);
    std::fs::create_dir_all(&notes)?;
    let note = notes.join(id.as_str());
    std::fs::write(&note, r#"{"at_ms":7,"reason":"expired","detail":"its lease ran out"}"#)?;
    let settling = std::fs::File::open(&note)?;
    settling.lock()?;
    let client = context.client();
    let manifest = Manifest::default();
    let create = client.create(&manifest, CreateOptions::default().id(id.clone()));
    let mut create = std::pin::pin!(create);
    let waits = tokio::time::timeout(Duration::from_secs(1), &mut create).await;
    assert!(waits.is_err(), "it is there while somebody clears away what had its name");
    drop(settling);
    let session = create.await?;
    assert!(!note.exists(), "nobody settled it");
    assert_eq!(say(&session, "echo here").await?, "here\n");
    Ok(session.delete().await?)
}
