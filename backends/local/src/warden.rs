//! Wardens that wait for their session, and the one that is kept ready for the next.
//!
//! Namespaces, mounts and a process take longer to make than all that follows, and are the same for
//! most sessions of a program. So from its second session on a program has one foundation laid ahead.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bastide::host::words;
use bastide_guest_bin::GuestBinary;
use bastide_proto::boot::{BootReport, BootSpec, Groundwork, Rung};
use tokio::io::Interest;
use tokio::runtime::Handle;

use crate::descriptors;
use crate::nursery::{Nursery, Warden};

/// The longest report of a warden.
const MAX_REPORT: usize = 64 * 1024;

/// How long after a session the next foundation is laid: its first command shall not wait for that.
const LATER: Duration = Duration::from_millis(5);

/// How long a foundation is kept that nobody asks for.
const KEPT: Duration = Duration::from_secs(30);

/// How long a warden without a session may take to end.
const END: Duration = Duration::from_secs(10);

/// A warden that knows what to stand on, and not yet for whom.
pub(crate) struct Waiting {
    pub(crate) warden: Warden,
    /// It ends when this closes, unless a session lives in it by then.
    pub(crate) control: StdStream,
    ground: Groundwork,
}

impl Waiting {
    /// Takes a warden that was executed ahead, or has one forked by a nursery, or executes one. What it
    /// stands on is laid while this process does other things.
    pub(crate) async fn start(
        guest: &GuestBinary,
        executed: Option<(Warden, StdStream)>,
        nursery: Option<Arc<Nursery>>,
        ground: Groundwork,
    ) -> io::Result<Self> {
        let ready = match (executed, nursery) {
            (None, Some(nursery)) => nursery.fork().await.ok(),
            (executed, _) => executed,
        };
        let (warden, control) = match ready {
            Some(ready) => ready,
            None => Warden::start(guest)?,
        };
        words::send(&mut words::to_tokio(control.try_clone()?)?, &ground).await?;
        Ok(Self { warden, control, ground })
    }

    /// Tells it for whom, and hears what became of it.
    pub(crate) async fn carry(
        &self,
        session: &BootSpec,
        handed: &[BorrowedFd<'_>],
    ) -> io::Result<BootReport> {
        let mut control = words::to_tokio(self.control.try_clone()?)?;
        let body = bastide_proto::encode(session).map_err(io::Error::other)?;
        let header = u32::try_from(body.len()).map_err(io::Error::other)?.to_le_bytes();
        control.writable().await?;
        control.try_io(Interest::WRITABLE, || {
            // Nothing else is on its way that would leave no room for these few bytes.
            descriptors::send(control.as_fd(), &header, handed)
        })?;
        tokio::io::AsyncWriteExt::write_all(&mut control, &body).await?;
        words::receive(&mut control, MAX_REPORT).await
    }

    /// Ends it, without a session.
    async fn end(self) {
        let Self { warden, control, .. } = self;
        drop(control);
        // It ends by itself; here it is only collected.
        drop(warden.ended(END).await);
    }
}

/// The foundation for the next session, if there is one.
#[derive(Default)]
pub(crate) struct Spares(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    /// Whether there was a session: who makes one may make none after it, who makes two makes more.
    had_session: bool,
    /// Whether a foundation is being laid.
    is_coming: bool,
    spare: Option<Waiting>,
    /// How many there were.
    count: u64,
    /// Where wardens come from; it goes with a spare that nobody asked for.
    nursery: Option<Arc<Nursery>>,
    /// Whether it is opened for the first session, too.
    is_early: bool,
}

impl Spares {
    /// For a program that will make many sessions.
    pub(crate) fn for_many() -> Self {
        let shelf = Shelf { had_session: true, is_early: true, ..Shelf::default() };
        Self(Mutex::new(shelf))
    }

    /// The one that is ready, if it is like this.
    pub(crate) fn take(&self, ground: &Groundwork) -> Option<Waiting> {
        self.shelf().spare.take_if(|spare| spare.ground == *ground)
    }

    /// Whether the next session need not execute a warden.
    pub(crate) fn has_warden(&self) -> bool {
        let shelf = self.shelf();
        shelf.spare.is_some() || shelf.nursery.is_some() || shelf.is_early
    }

    fn take_number(&self, number: u64) -> Option<Waiting> {
        let mut shelf = self.shelf();
        if shelf.count != number {
            return None;
        }
        shelf.nursery = None;
        shelf.spare.take()
    }

    /// Where wardens come from, if somebody has asked for more than one.
    pub(crate) async fn nursery(
        self: &Arc<Self>,
        guest: &GuestBinary,
        ground: &Groundwork,
    ) -> Option<Arc<Nursery>> {
        let (open, is_early) = {
            let shelf = self.shelf();
            (shelf.nursery.clone(), shelf.is_early)
        };
        match open {
            None if is_early => Self::open_nursery(&Arc::downgrade(self), guest, ground).await,
            open => open.filter(|nursery| nursery.is_callers()),
        }
    }

    /// Has one made for a session like the one that was just made.
    pub(crate) fn prepare(self: &Arc<Self>, guest: &Arc<GuestBinary>, ground: &Groundwork) {
        if ground.rung != Rung::Namespaces {
            return;
        }
        {
            let mut shelf = self.shelf();
            let is_there = shelf.spare.as_ref().is_some_and(|spare| spare.ground == *ground);
            let is_first = !std::mem::replace(&mut shelf.had_session, true);
            if is_first || shelf.is_coming || is_there {
                return;
            }
            shelf.is_coming = true;
        }
        let (spares, guest, ground) = (Arc::downgrade(self), Arc::clone(guest), ground.clone());
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            let Some(number) = Self::lay(&spares, &guest, ground).await else { return };
            tokio::time::sleep(KEPT).await;
            // A later one has its own time.
            let unused = spares.upgrade().and_then(|spares| spares.take_number(number));
            if let Some(unused) = unused {
                unused.end().await;
            }
        });
    }

    /// Lays a foundation, and says the how-manieth it is.
    async fn lay(spares: &Weak<Self>, guest: &GuestBinary, ground: Groundwork) -> Option<u64> {
        // Nobody waits for one any more whose client is gone.
        spares.upgrade()?;
        let nursery = Self::open_nursery(spares, guest, &ground).await;
        let laid = Waiting::start(guest, None, nursery, ground).await;
        let spares = spares.upgrade()?;
        let (unfit, count) = {
            let mut shelf = spares.shelf();
            shelf.is_coming = false;
            // Whatever is wrong, the next session is told of when it tries the same.
            let unfit = shelf.spare.replace(laid.ok()?);
            shelf.count += 1;
            (unfit, shelf.count)
        };
        if let Some(unfit) = unfit {
            unfit.end().await;
        }
        Some(count)
    }

    /// Where wardens come from, from now on. One that is of no use any more is replaced.
    async fn open_nursery(
        spares: &Weak<Self>,
        guest: &GuestBinary,
        ground: &Groundwork,
    ) -> Option<Arc<Nursery>> {
        let open = spares.upgrade()?.shelf().nursery.clone();
        if open.as_ref().is_some_and(|nursery| nursery.is_for(ground)) {
            return open;
        }
        // Without one, wardens are executed.
        let nursery = Nursery::start(guest, ground).await.ok().map(Arc::new);
        spares.upgrade()?.shelf().nursery.clone_from(&nursery);
        nursery
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // Nobody panics while holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        let shelf = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Outside of a runtime it ends as well; it is only collected later.
        if let (Some(spare), Ok(runtime)) = (shelf.spare.take(), Handle::try_current()) {
            runtime.spawn(spare.end());
        }
    }
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}
