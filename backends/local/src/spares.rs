//! Wardens that wait for their session, and the one that is kept ready for the next.
//!
//! Namespaces, mounts and a process take longer to make than all that follows, and are the same for
//! most sessions of a program. So from its second session on a program has one base built ahead.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bastide::warden_client;
use bastide_guest_bin::GuestBinary;
use bastide_proto::LENGTH_BYTES;
use bastide_proto::boot::{BaseSpec, BootReport, BootSpec, Rung};
use tokio::io::Interest;
use tokio::runtime::Handle;

use crate::descriptors;
use crate::warden::Warden;
use crate::zygote::Zygote;

/// The longest report of a warden.
const MAX_REPORT: usize = 64 * 1024;

/// How long after a session the next base is built: its first command shall not wait for that.
const LATER: Duration = Duration::from_millis(5);

/// How long a base is kept that nobody asks for.
const KEPT: Duration = Duration::from_secs(30);

/// How long a warden without a session may take to end.
const END: Duration = Duration::from_secs(10);

/// A warden that has a base and no session.
pub(crate) struct SpareWarden {
    pub(crate) warden: Warden,
    /// It ends when this closes, unless a session lives in it by then.
    pub(crate) control: StdStream,
    base_spec: BaseSpec,
}

impl SpareWarden {
    /// Takes a warden that was executed ahead, or has one forked by a zygote, or executes one. Its
    /// base is built while this process does other things.
    pub(crate) async fn start(
        guest: &GuestBinary,
        executed: Option<(Warden, StdStream)>,
        zygote: Option<Arc<Zygote>>,
        base_spec: BaseSpec,
    ) -> io::Result<Self> {
        let ready = match (executed, zygote) {
            (None, Some(zygote)) => zygote.fork().await.ok(),
            (executed, _) => executed,
        };
        let (warden, control) = match ready {
            Some(ready) => ready,
            None => Warden::start(guest)?,
        };
        warden_client::send(&mut warden_client::to_tokio(control.try_clone()?)?, &base_spec)
            .await?;
        Ok(Self { warden, control, base_spec })
    }

    /// Tells it for whom, and hears what became of it.
    pub(crate) async fn boot_session(
        &self,
        session: &BootSpec,
        handed: &[BorrowedFd<'_>],
    ) -> io::Result<BootReport> {
        let mut control = warden_client::to_tokio(self.control.try_clone()?)?;
        let message = bastide_proto::encode_prefixed(session).map_err(io::Error::other)?;
        let (prefix, body) = message.split_at(LENGTH_BYTES);
        control.writable().await?;
        control.try_io(Interest::WRITABLE, || {
            // Nothing else is on its way that would leave no room for these few bytes.
            descriptors::send(control.as_fd(), prefix, handed)
        })?;
        tokio::io::AsyncWriteExt::write_all(&mut control, body).await?;
        warden_client::receive(&mut control, MAX_REPORT).await
    }

    /// Ends it, without a session.
    async fn end(self) {
        let Self { warden, control, .. } = self;
        drop(control);
        // It ends by itself; here it is only collected.
        drop(warden.ended(END).await);
    }
}

/// The warden with a base for the next session, if there is one.
#[derive(Default)]
pub(crate) struct Spares(Mutex<SpareState>);

#[derive(Default)]
struct SpareState {
    /// Whether there was a session: who makes one may make none after it, who makes two makes more.
    had_session: bool,
    /// Whether a base is being built.
    is_coming: bool,
    spare: Option<SpareWarden>,
    /// How many there were.
    count: u64,
    /// Where wardens come from; it goes with a spare that nobody asked for.
    zygote: Option<Arc<Zygote>>,
    /// Whether it is opened for the first session, too.
    is_early: bool,
}

impl Spares {
    /// For a program that will make many sessions.
    pub(crate) fn for_many() -> Self {
        let state = SpareState { had_session: true, is_early: true, ..SpareState::default() };
        Self(Mutex::new(state))
    }

    /// The one that is ready, if it is like this.
    pub(crate) fn take(&self, base_spec: &BaseSpec) -> Option<SpareWarden> {
        self.state().spare.take_if(|spare| spare.base_spec == *base_spec)
    }

    /// Whether the next session need not execute a warden.
    pub(crate) fn has_warden(&self) -> bool {
        let state = self.state();
        state.spare.is_some() || state.zygote.is_some() || state.is_early
    }

    fn take_nth(&self, number: u64) -> Option<SpareWarden> {
        let mut state = self.state();
        if state.count != number {
            return None;
        }
        state.zygote = None;
        state.spare.take()
    }

    /// Where wardens come from, if somebody has asked for more than one.
    pub(crate) async fn zygote(
        self: &Arc<Self>,
        guest: &GuestBinary,
        base_spec: &BaseSpec,
    ) -> Option<Arc<Zygote>> {
        let (open, is_early) = {
            let state = self.state();
            (state.zygote.clone(), state.is_early)
        };
        match open {
            None if is_early => Self::open_zygote(&Arc::downgrade(self), guest, base_spec).await,
            open => open.filter(|zygote| zygote.has_callers_credentials()),
        }
    }

    /// Has one made for a session like the one that was just made.
    pub(crate) fn prepare(self: &Arc<Self>, guest: &Arc<GuestBinary>, base_spec: &BaseSpec) {
        if base_spec.rung != Rung::Namespaces {
            return;
        }
        {
            let mut state = self.state();
            let is_there = state.spare.as_ref().is_some_and(|spare| spare.base_spec == *base_spec);
            let is_first = !std::mem::replace(&mut state.had_session, true);
            if is_first || state.is_coming || is_there {
                return;
            }
            state.is_coming = true;
        }
        let (spares, guest, base_spec) =
            (Arc::downgrade(self), Arc::clone(guest), base_spec.clone());
        tokio::spawn(async move {
            tokio::time::sleep(LATER).await;
            let Some(number) = Self::build_spare(&spares, &guest, base_spec).await else { return };
            tokio::time::sleep(KEPT).await;
            // A later one has its own time.
            let unused = spares.upgrade().and_then(|spares| spares.take_nth(number));
            if let Some(unused) = unused {
                unused.end().await;
            }
        });
    }

    /// Builds a base, and returns its number.
    async fn build_spare(
        spares: &Weak<Self>,
        guest: &GuestBinary,
        base_spec: BaseSpec,
    ) -> Option<u64> {
        // Nobody waits for one any more whose client is gone.
        spares.upgrade()?;
        let zygote = Self::open_zygote(spares, guest, &base_spec).await;
        let laid = SpareWarden::start(guest, None, zygote, base_spec).await;
        let spares = spares.upgrade()?;
        let (unfit, count) = {
            let mut state = spares.state();
            state.is_coming = false;
            // Whatever is wrong, the next session is told of when it tries the same.
            let unfit = state.spare.replace(laid.ok()?);
            state.count += 1;
            (unfit, state.count)
        };
        if let Some(unfit) = unfit {
            unfit.end().await;
        }
        Some(count)
    }

    /// Where wardens come from, from now on. One that is of no use any more is replaced.
    async fn open_zygote(
        spares: &Weak<Self>,
        guest: &GuestBinary,
        base_spec: &BaseSpec,
    ) -> Option<Arc<Zygote>> {
        let open = spares.upgrade()?.state().zygote.clone();
        if open.as_ref().is_some_and(|zygote| zygote.is_for(base_spec)) {
            return open;
        }
        // Without one, wardens are executed.
        let zygote = Zygote::start(guest, base_spec).await.ok().map(Arc::new);
        spares.upgrade()?.state().zygote.clone_from(&zygote);
        zygote
    }

    fn state(&self) -> MutexGuard<'_, SpareState> {
        // Nobody panics while holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Outside of a runtime it ends as well; it is only collected later.
        if let (Some(spare), Ok(runtime)) = (state.spare.take(), Handle::try_current()) {
            runtime.spawn(spare.end());
        }
    }
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}
