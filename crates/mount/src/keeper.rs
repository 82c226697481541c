//! Looks after the mounts of one session, for its warden: it has the keys and the devices, and starts a program for each
//! mount, so that what one store does to its program reaches no other's keys.
//!
//! The warden starts it with the first mount and hands it the connections of hosts. It ends with the warden's end of the
//! channel, once everything is stored that was written.

mod events;
mod leftovers;
mod mount;
mod program;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bastide_proto::mounts::{
    KeeperSpec, MAX_MOUNT_MESSAGE, MAX_MOUNTS, MOUNTS_FOLDER, MountRefusal, MountRequest,
    MountResponse, MountState, StoreMount,
};
use bastide_proto::{LENGTH_BYTES, prefixed_length};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::{JoinSet, LocalSet};

use crate::attach::{AttachOutcome, AttachRequest, MAX_DEPTH, MountTarget};
use crate::spec::MountSpec;
use mount::Mount;
use program::{Namespaces, PacketSocket, probe};

/// How long a host may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why something was not done.
#[derive(Debug)]
pub(crate) struct Refusal {
    why: MountRefusal,
    message: String,
}

impl Refusal {
    fn new(why: MountRefusal, message: impl Into<String>) -> Self {
        Self { why, message: message.into() }
    }
}

impl From<Refusal> for MountResponse {
    fn from(Refusal { why, message }: Refusal) -> Self {
        Self::Refused { why, message }
    }
}

/// The life of a keeper.
///
/// # Errors
/// If the warden cannot be heard.
pub fn keep(warden: OwnedFd) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let warden = PacketSocket::new(warden)?;
        let Some((spec, fds)) = warden.receive_packet().await? else { return Ok(()) };
        let spec: KeeperSpec = bastide_proto::decode(&spec).map_err(io::Error::other)?;
        let namespaces = fds.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        let keeper = Rc::new(Keeper::new(spec, namespaces));
        let mut callers = JoinSet::new();
        // The end of the warden is the end of the session.
        while let Ok(Some((_, fds))) = warden.receive_packet().await {
            for caller in fds {
                callers.spawn_local(Rc::clone(&keeper).answer(caller));
            }
            while callers.try_join_next().is_some() {}
        }
        callers.shutdown().await;
        keeper.end().await;
        Ok(())
    })
}

struct Keeper {
    spec: KeeperSpec,
    namespaces: Namespaces,
    mounts: RefCell<Vec<Rc<Mount>>>,
    /// Paths where something is being mounted or unmounted.
    taken: RefCell<Vec<String>>,
    next: Cell<u64>,
}

/// The right to mount or unmount at a path.
struct PathLock<'a> {
    keeper: &'a Keeper,
    path: String,
}

impl Drop for PathLock<'_> {
    fn drop(&mut self) {
        self.keeper.taken.borrow_mut().retain(|taken| *taken != self.path);
    }
}

impl Keeper {
    fn new(spec: KeeperSpec, namespaces: OwnedFd) -> Self {
        Self {
            spec,
            namespaces: Namespaces::new(namespaces),
            mounts: RefCell::default(),
            taken: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// Does what a host wants, and says what became of it. One that went away meanwhile asks for the status.
    async fn answer(self: Rc<Self>, caller: OwnedFd) {
        let Ok(mut caller) = connection(caller) else { return };
        let received = tokio::time::timeout(REQUEST_TIMEOUT, read_request(&mut caller)).await;
        let Ok(Ok(request)) = received else { return };
        let done = match request {
            MountRequest::Mount(order) => self.mount(*order).await.map(|()| MountResponse::Done),
            MountRequest::Unmount { path, deadline_ms } => {
                let deadline = Duration::from_millis(deadline_ms);
                self.unmount(&path, deadline).await.map(|()| MountResponse::Done)
            }
            MountRequest::Status => {
                let mounts = self.mounts.borrow().clone();
                let all = futures::future::join_all(mounts.iter().map(|mount| mount.status()));
                Ok(MountResponse::Status(all.await))
            }
            _ => Err(Refusal::new(MountRefusal::Unsupported, "this keeper cannot do that")),
        };
        let response = done.unwrap_or_else(MountResponse::from);
        if let Ok(bytes) = bastide_proto::encode_prefixed(&response) {
            drop(caller.write_all(&bytes).await);
        }
    }

    fn find(&self, path: &str) -> Option<Rc<Mount>> {
        self.mounts.borrow().iter().find(|mount| mount.order.path == path).cloned()
    }

    fn take(&self, path: &str) -> Result<PathLock<'_>, Refusal> {
        let mut taken = self.taken.borrow_mut();
        if taken.iter().any(|taken| taken == path) {
            let message = format!("{path} is being mounted or unmounted by somebody else");
            return Err(Refusal::new(MountRefusal::Conflict, message));
        }
        taken.push(path.to_owned());
        Ok(PathLock { keeper: self, path: path.to_owned() })
    }

    async fn mount(&self, order: StoreMount) -> Result<(), Refusal> {
        let path = order.path.clone();
        let _taken = self.take(&path)?;
        let names = self.names(&path)?;
        if let Some(found) = self.find(&path) {
            if found.order != order {
                let message = format!("something else is mounted on {path}; unmount it first");
                return Err(Refusal::new(MountRefusal::Conflict, message));
            }
            if found.state() != MountState::Lost {
                return Ok(());
            }
            found.detach(&self.spec, &self.namespaces).await?;
            // What its programs could not store is in the audit log; here another one is wanted.
            drop(found.finish(Duration::ZERO).await);
            self.mounts.borrow_mut().retain(|kept| !Rc::ptr_eq(kept, &found));
        }
        if self.mounts.borrow().len() >= MAX_MOUNTS {
            let message = format!("a session has at most {MAX_MOUNTS} mounts; unmount one first");
            return Err(Refusal::new(MountRefusal::Unsupported, message));
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let spec = mount_spec(&order, number)?;
        // Before anything is mounted: what is wrong with a store is said, not found out by commands.
        probe(&spec).await?;
        // Another keeper of the same session may not have ended yet.
        let name = format!("{}-{number}", std::process::id());
        let staging = self.spec.session_dir.join(MOUNTS_FOLDER).join(name);
        let mount = Mount::make(order, spec, staging, &self.spec, &self.namespaces, names).await?;
        self.mounts.borrow_mut().push(Rc::new(mount));
        Ok(())
    }

    /// The names from the workspace to a mount.
    fn names(&self, path: &str) -> Result<Vec<String>, Refusal> {
        let workspace = self.spec.workspace.trim_end_matches('/');
        let beneath = path.strip_prefix(workspace).and_then(|rest| rest.strip_prefix('/'));
        let odd =
            |name: &&str| name.is_empty() || *name == "." || *name == ".." || name.contains('\0');
        let names: Vec<_> = beneath.map(|beneath| beneath.split('/').collect()).unwrap_or_default();
        if names.is_empty() || names.len() > MAX_DEPTH || names.iter().any(odd) {
            let message =
                format!("{path:?} is no path beneath the workspace {workspace}; mount there");
            return Err(Refusal::new(MountRefusal::Invalid, message));
        }
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    async fn unmount(&self, path: &str, deadline: Duration) -> Result<(), Refusal> {
        let _taken = self.take(path)?;
        // While a program of a keeper that was killed still stores something, its mount is answered for.
        let kept = leftovers::take(&self.spec.session_dir.join(MOUNTS_FOLDER)).await;
        let done = match self.find(path) {
            Some(mount) => self.take_away(&mount, deadline).await,
            None => self.clear(path).await,
        };
        if kept.is_empty() {
            return done;
        }
        let before = match &done {
            Ok(()) => format!("{path} is unmounted"),
            Err(refusal) => refusal.message.clone(),
        };
        let message = format!(
            "{before}; a keeper before this one ended without saying so, and what could not be stored is in {}",
            kept.join(", ")
        );
        Err(Refusal::new(MountRefusal::NotStored, message))
    }

    /// Takes away what a keeper left at a path that was killed.
    async fn clear(&self, path: &str) -> Result<(), Refusal> {
        let mount_target = MountTarget {
            device: PathBuf::new(),
            workspace: self.spec.workspace.clone(),
            names: self.names(path)?,
            read_only: true,
            inside: self.spec.inside,
            owner: None,
        };
        let failed =
            |why: String| Refusal::new(MountRefusal::Io, format!("cannot unmount {path}: {why}"));
        match self.namespaces.run(&AttachRequest::Clear(mount_target), &[]).await {
            Ok((AttachOutcome::Failed { step, errno }, _)) => {
                let errno = io::Error::from_raw_os_error(errno);
                Err(failed(format!("cannot {step}: {errno}")))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    async fn take_away(&self, mount: &Rc<Mount>, deadline: Duration) -> Result<(), Refusal> {
        mount.detach(&self.spec, &self.namespaces).await?;
        let finished = mount.finish(deadline).await;
        if finished.is_err() {
            leftovers::mark_told(mount.staging());
        }
        self.mounts.borrow_mut().retain(|kept| !Rc::ptr_eq(kept, mount));
        finished
    }

    /// Has everything stored, and ends every program.
    async fn end(&self) {
        let mounts = self.mounts.take();
        futures::future::join_all(mounts.iter().map(|mount| mount.finish(Duration::ZERO))).await;
        // Innermost first.
        mounts.iter().rev().for_each(|mount| mount.remove_made());
        // It is gone with the session, or empty.
        drop(std::fs::remove_dir(self.spec.session_dir.join(MOUNTS_FOLDER)));
    }
}

/// What the program of a mount is told of it.
fn mount_spec(order: &StoreMount, number: u64) -> Result<MountSpec, Refusal> {
    let wrong = |error: serde_json::Error| {
        // The error of a parser says what it found, and that may be a key.
        let message = format!(
            "the store of {} is not described as it must be (column {})",
            order.path,
            error.column()
        );
        Refusal::new(MountRefusal::Invalid, message)
    };
    let mut spec: Value = serde_json::from_str(&order.spec).map_err(wrong)?;
    if let Value::Object(fields) = &mut spec {
        fields.insert("id".into(), format!("m{number}").into());
        fields.insert("read_only".into(), order.read_only.into());
        fields.insert("resumed".into(), false.into());
    }
    serde_json::from_value(spec).map_err(wrong)
}

fn connection(caller: OwnedFd) -> io::Result<UnixStream> {
    let caller = std::os::unix::net::UnixStream::from(caller);
    caller.set_nonblocking(true)?;
    UnixStream::from_std(caller)
}

async fn read_request(caller: &mut UnixStream) -> io::Result<MountRequest> {
    let mut prefix = [0; LENGTH_BYTES];
    caller.read_exact(&mut prefix).await?;
    let length = prefixed_length(prefix, MAX_MOUNT_MESSAGE).ok_or(io::ErrorKind::InvalidData)?;
    let mut body = vec![0; length];
    caller.read_exact(&mut body).await?;
    bastide_proto::decode(&body).map_err(io::Error::other)
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A folder of the session's own.
fn make_staging(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    fn keeper() -> Keeper {
        let spec = KeeperSpec {
            session_dir: "/nowhere".into(),
            workspace: "/workspace".into(),
            inside: None,
            disk: None,
        };
        Keeper::new(spec, StdStream::pair().unwrap().0.into())
    }

    fn order(spec: &str) -> StoreMount {
        StoreMount {
            path: "/workspace/data".into(),
            provider: "s3".into(),
            read_only: false,
            spec: spec.into(),
            cache: "/nowhere".into(),
            cache_size: 0,
            owner: None,
            device: "/dev/fuse".into(),
            events: "/nowhere".into(),
        }
    }

    #[test]
    fn mounts_beneath_the_workspace_alone() {
        let keeper = keeper();
        assert_eq!(keeper.names("/workspace/a/b").ok().unwrap(), ["a", "b"]);
        for path in [
            "/workspace",
            "/workspace/",
            "/etc",
            "/workspace2/a",
            "/workspace/../etc",
            "a",
            "",
            "/workspace/a//b",
            "/workspace/./a",
            "/workspace/a\0b",
        ] {
            assert!(keeper.names(path).is_err(), "{path}");
        }
        let deep = format!("/workspace{}", "/d".repeat(MAX_DEPTH + 1));
        assert!(keeper.names(&deep).is_err());
    }

    #[test]
    fn says_nothing_of_what_stands_in_a_description() {
        for wrong in [r#"{"source": "hidden"}"#, r#"{"hidden": 1}"#, "hidden", "[\"hidden\"]"] {
            let refusal = mount_spec(&order(wrong), 1).unwrap_err();
            assert!(!format!("{refusal:?}").contains("hidden"), "{refusal:?}");
        }
    }

    #[test]
    fn gives_a_path_to_one_at_a_time() {
        let keeper = keeper();
        let taken = keeper.take("/workspace/a").ok().unwrap();
        assert!(keeper.take("/workspace/a").is_err());
        drop(keeper.take("/workspace/b").ok().unwrap());
        drop(taken);
        assert!(keeper.take("/workspace/a").is_ok());
    }
}
