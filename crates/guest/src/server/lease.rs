//! The clock by which a guest ends itself, where nobody watches over it: in a pod, whose maker may be gone for good.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bastide_proto::pod::PodLease;
use bastide_proto::warden::{ExpiryAction, LeaseState, LeaseUpdate};
use bastide_proto::{Accepted, End, Fault, FaultKind};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use super::Guest;
use super::call::{Outbox, Refusal};

/// The longest wait at once: what a clock cannot count to is waited for in steps.
const STEP: Duration = Duration::from_secs(3600);

/// The lease of a session; one without limits, but in a pod.
#[derive(Debug)]
pub(crate) struct Lease {
    limits: Option<PodLease>,
    /// When a host said something last, in milliseconds of a clock that also runs while the machine sleeps.
    last_contact: AtomicU64,
    is_let_go: AtomicBool,
    given: Mutex<GivenLease>,
    changed: Notify,
}

/// What somebody gave the session.
#[derive(Debug, Default)]
struct GivenLease {
    /// When its time is over, in milliseconds of the same clock.
    until: Option<u64>,
    /// For how many milliseconds nothing may happen.
    idle: Option<u64>,
    /// What whoever sees the end makes of it.
    then: ExpiryAction,
}

/// Why a session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseExpiry {
    /// Nobody was heard of for too long.
    Abandoned,
    /// The time it was given has passed.
    Expired,
}

/// Answers [`Request::Lease`](bastide_proto::Request::Lease).
pub(super) async fn change(
    guest: &Guest,
    update: &LeaseUpdate,
    outbox: &mut Outbox,
) -> Result<(), Refusal> {
    let Some(state) = guest.lease.update(update) else {
        let why = "this guest keeps no leases, or the time is none";
        return Err(Fault::new(FaultKind::Invalid, why).into());
    };
    outbox.accept(Accepted::default()).await?;
    outbox.item(&state).await?;
    Ok(outbox.end(&End::Done).await?)
}

impl Lease {
    pub(super) fn new(limits: Option<PodLease>) -> Self {
        Self {
            limits,
            last_contact: AtomicU64::new(now()),
            is_let_go: AtomicBool::new(false),
            given: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// A host said something.
    pub(super) fn host_seen(&self) {
        if self.limits.is_some() {
            self.last_contact.store(now(), Relaxed);
        }
    }

    /// The session lives on without its maker.
    pub(super) fn let_go(&self) {
        self.is_let_go.store(true, Relaxed);
        self.changed.notify_one();
    }

    fn given(&self) -> MutexGuard<'_, GivenLease> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the session was given; what that is then. `None` where somebody else watches over it, or for no time.
    fn update(&self, update: &LeaseUpdate) -> Option<LeaseState> {
        self.limits?;
        if update.ttl_ms == Some(0) || update.idle_ms == Some(0) {
            return None;
        }
        let (now, mut given) = (now(), self.given());
        if update.forget {
            *given = GivenLease::default();
        }
        if let Some(ttl) = update.ttl_ms {
            let until = now.saturating_add(ttl);
            // One without an end lasts longer than any other.
            let is_enough = given.until.is_none_or(|before| before >= until);
            if !(update.at_least && is_enough) {
                given.until = Some(until);
            }
        }
        given.idle = update.idle_ms.or(given.idle);
        given.then = update.then.unwrap_or(given.then);
        let state = LeaseState {
            remaining_ms: given.until.map(|until| until.saturating_sub(now)),
            idle_ms: given.idle,
            then: given.then,
        };
        drop(given);
        self.changed.notify_one();
        Some(state)
    }

    /// How long it lasts if nothing happens that has not happened yet, and why it ends then.
    fn left(&self, idle: impl Fn() -> Duration) -> Option<(Duration, LeaseExpiry)> {
        let limits = self.limits?;
        let limit = if self.is_let_go.load(Relaxed) { limits.ttl_ms } else { limits.maker_ms };
        let now = now();
        let until = |end: u64| Duration::from_millis(end.saturating_sub(now));
        let alone = until(self.last_contact.load(Relaxed).saturating_add(limit));
        let given = self.given();
        let time = given.until.map(until);
        let quiet = given.idle.map(|most| Duration::from_millis(most).saturating_sub(idle()));
        let expiry = time.into_iter().chain(quiet).min();
        Some(match expiry {
            Some(expiry) if expiry <= alone => (expiry, LeaseExpiry::Expired),
            _ => (alone, LeaseExpiry::Abandoned),
        })
    }

    /// Waits until it has run out. `idle` says how long nothing has happened.
    pub(super) async fn over(&self, idle: impl Fn() -> Duration) -> LeaseExpiry {
        loop {
            let Some((left, over)) = self.left(&idle) else { return std::future::pending().await };
            if left.is_zero() {
                return over;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(STEP)) => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

fn now() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: PodLease = PodLease { maker_ms: 30, ttl_ms: u64::MAX };
    const LONG: PodLease = PodLease { maker_ms: u64::MAX, ttl_ms: u64::MAX };

    fn busy() -> Duration {
        Duration::ZERO
    }

    #[tokio::test]
    async fn ends_after_the_last_word_of_its_maker() {
        let lease = Lease::new(Some(SHORT));
        assert_eq!(lease.over(busy).await, LeaseExpiry::Abandoned);
        lease.host_seen();
        assert_ne!(lease.left(busy).unwrap().0, Duration::ZERO);
        assert_eq!(lease.over(busy).await, LeaseExpiry::Abandoned);
    }

    #[tokio::test]
    async fn lasts_longer_once_it_was_let_go() {
        let lease = Lease::new(Some(PodLease { maker_ms: 60_000, ttl_ms: 30 }));
        let (over, ()) = tokio::join!(lease.over(busy), async { lease.let_go() });
        assert_eq!(over, LeaseExpiry::Abandoned, "the other limit holds at once");
        let lease = Lease::new(Some(SHORT));
        lease.let_go();
        assert!(lease.left(busy).unwrap().0 > Duration::from_secs(3600));
        assert_eq!(Lease::new(None).left(busy), None);
    }

    #[tokio::test]
    async fn ends_when_the_time_is_over_that_it_was_given() {
        let lease = Lease::new(Some(LONG));
        let update = LeaseUpdate { ttl_ms: Some(60_000), ..LeaseUpdate::default() };
        assert!(lease.update(&update).unwrap().remaining_ms > Some(50_000));
        // At least so long is no shorter; another time counts at once.
        let update = LeaseUpdate { ttl_ms: Some(30), at_least: true, ..LeaseUpdate::default() };
        assert!(lease.update(&update).unwrap().remaining_ms > Some(50_000));
        let update = LeaseUpdate { ttl_ms: Some(30), ..LeaseUpdate::default() };
        let (over, _) = tokio::join!(lease.over(busy), async { lease.update(&update) });
        assert_eq!(over, LeaseExpiry::Expired);
        let update = LeaseUpdate { forget: true, ..LeaseUpdate::default() };
        assert_eq!(lease.update(&update).unwrap().remaining_ms, None);
        assert_eq!(lease.left(busy).unwrap().1, LeaseExpiry::Abandoned);
        let none = LeaseUpdate { ttl_ms: Some(0), ..LeaseUpdate::default() };
        assert_eq!(lease.update(&none), None);
        assert_eq!(Lease::new(None).update(&update), None);
    }

    #[tokio::test]
    async fn ends_when_nothing_has_happened_for_long_enough() {
        let lease = Lease::new(Some(LONG));
        let update = LeaseUpdate { idle_ms: Some(1000), ..LeaseUpdate::default() };
        lease.update(&update).unwrap();
        assert_eq!(lease.left(busy).unwrap(), (Duration::from_secs(1), LeaseExpiry::Expired));
        let idle = || Duration::from_secs(2);
        assert_eq!(lease.over(idle).await, LeaseExpiry::Expired);
    }
}
