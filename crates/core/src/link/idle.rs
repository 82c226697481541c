//! Links that are closed when nobody uses them, and opened again with the next call: each costs something on the way.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bastide_proto::Request;
use futures::future::BoxFuture;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::{Link, MuxLink, Stream};
use crate::backend::{Backend, Connection, Machine};
use crate::{ErrorKind, Result};

/// How another link is had.
type Dial = Box<dyn Fn() -> BoxFuture<'static, Result<MuxLink>> + Send + Sync>;

/// A link that is there while it is used. It closes when no call was open for as long as it may be idle, or a little longer.
pub struct IdleLink {
    dial: Dial,
    protocol: u32,
    shared: Arc<Shared>,
}

struct Shared {
    most: Duration,
    /// Whether the session lives on without this link.
    may_close: AtomicBool,
    /// How many calls are on their way to the guest: none is lost to a link that closes under it.
    opening: AtomicUsize,
    open: Mutex<Option<OpenLink>>,
}

struct OpenLink {
    link: Arc<MuxLink>,
    used: Instant,
}

/// A call on its way to the guest.
struct Opening<'a>(&'a AtomicUsize);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl IdleLink {
    /// A link to a guest that speaks that version of the protocol, opened with the first call.
    pub fn new(
        protocol: u32,
        most: Duration,
        dial: impl Fn() -> BoxFuture<'static, Result<MuxLink>> + Send + Sync + 'static,
    ) -> Self {
        let (may_close, opening) = (AtomicBool::new(true), AtomicUsize::new(0));
        let shared = Shared { most, may_close, opening, open: Mutex::new(None) };
        Self { dial: Box::new(dial), protocol, shared: Arc::new(shared) }
    }

    /// The link that is open, opened if there is none, and the call that is on its way over it.
    async fn link(&self) -> Result<(Arc<MuxLink>, Opening<'_>)> {
        let mut open = self.shared.open.lock().await;
        let link = match &mut *open {
            Some(OpenLink { link, used }) => {
                *used = Instant::now();
                Arc::clone(link)
            }
            none => {
                let link = Arc::new((self.dial)().await?);
                *none = Some(OpenLink { link: Arc::clone(&link), used: Instant::now() });
                tokio::spawn(close_when_idle(Arc::downgrade(&self.shared)));
                link
            }
        };
        self.shared.opening.fetch_add(1, Ordering::Relaxed);
        Ok((link, Opening(&self.shared.opening)))
    }

    /// Forgets a link whose guest is gone: the next call finds out whether it is still so.
    async fn forget(&self, lost: &Arc<MuxLink>) {
        let mut open = self.shared.open.lock().await;
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(&open.link, lost)) {
            *open = None;
        }
    }
}

/// A link to the guest of a machine, over this connection first. One that the machine lives by, because whoever made it has
/// not let go of it, stays open until that is done.
pub(crate) async fn link_of(
    backend: &Arc<dyn Backend>,
    machine: &Machine,
    first: Connection,
    lives_by_it: bool,
) -> Result<Arc<dyn Link>> {
    let first = MuxLink::connect_at(first, machine.protocol).await?;
    let Some(most) = backend.idle_link() else { return Ok(Arc::new(first)) };
    let (backend, machine, protocol) = (Arc::clone(backend), machine.clone(), machine.protocol);
    let link = IdleLink::new(protocol, most, move || {
        let (backend, machine) = (Arc::clone(&backend), machine.clone());
        Box::pin(async move {
            MuxLink::connect_at(backend.connect(&machine).await?, machine.protocol).await
        })
    });
    link.shared.may_close.store(!lives_by_it, Ordering::Relaxed);
    let first = OpenLink { link: Arc::new(first), used: Instant::now() };
    *link.shared.open.lock().await = Some(first);
    tokio::spawn(close_when_idle(Arc::downgrade(&link.shared)));
    Ok(Arc::new(link))
}

/// Closes a link that was not used for long enough. Ends with it.
async fn close_when_idle(shared: Weak<Shared>) {
    let Some(mut wait) = shared.upgrade().map(|shared| shared.most) else { return };
    loop {
        tokio::time::sleep(wait).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut open = shared.open.lock().await;
        let Some(OpenLink { link, used }) = &mut *open else { return };
        let is_used = !link.is_idle()
            || shared.opening.load(Ordering::Relaxed) > 0
            || !shared.may_close.load(Ordering::Relaxed);
        if is_used {
            *used = Instant::now();
        }
        wait = shared.most.saturating_sub(used.elapsed());
        if wait.is_zero() {
            *open = None;
            return;
        }
    }
}

#[async_trait]
impl Link for IdleLink {
    async fn open(&self, request: Request) -> Result<Stream> {
        let lets_go = matches!(request, Request::LetGo);
        let (link, _opening) = self.link().await?;
        let opened = link.open(request).await;
        match &opened {
            Ok(_) if lets_go => self.shared.may_close.store(true, Ordering::Relaxed),
            Err(error) if error.kind() == ErrorKind::AgentLost => self.forget(&link).await,
            _ => {}
        }
        opened
    }

    fn protocol(&self) -> u32 {
        self.protocol
    }
}

impl fmt::Debug for IdleLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleLink").field("most", &self.shared.most).finish_non_exhaustive()
    }
}
