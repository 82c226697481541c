//! The clock by which a guest ends itself, where nobody watches over it: in a pod, whose maker may be gone for good.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bastide_proto::pod::PodLease;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// The lease of a session; one without limits, but in a pod.
#[derive(Debug)]
pub(crate) struct Lease {
    limits: Option<PodLease>,
    /// When a host said something last, in milliseconds of a clock that also runs while the machine sleeps.
    heard: AtomicU64,
    is_let_go: AtomicBool,
    changed: Notify,
}

impl Lease {
    pub(super) fn new(limits: Option<PodLease>) -> Self {
        Self {
            limits,
            heard: AtomicU64::new(now()),
            is_let_go: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// A host said something.
    pub(super) fn hear(&self) {
        if self.limits.is_some() {
            self.heard.store(now(), Relaxed);
        }
    }

    /// The session lives on without its maker.
    pub(super) fn let_go(&self) {
        self.is_let_go.store(true, Relaxed);
        self.changed.notify_one();
    }

    /// How long it lasts if no host says anything.
    fn left(&self) -> Option<Duration> {
        let limits = self.limits?;
        let limit = if self.is_let_go.load(Relaxed) { limits.ttl_ms } else { limits.maker_ms };
        let end = self.heard.load(Relaxed).saturating_add(limit);
        Some(Duration::from_millis(end.saturating_sub(now())))
    }

    /// Waits until it has run out.
    pub(super) async fn over(&self) {
        loop {
            let Some(left) = self.left() else { return std::future::pending().await };
            if left.is_zero() {
                return;
            }
            // What a clock cannot count to is waited for in steps.
            let next = left.min(Duration::from_secs(3600));
            tokio::select! {
                () = tokio::time::sleep(next) => {}
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

    #[tokio::test]
    async fn ends_after_the_last_word_of_its_maker() {
        let lease = Lease::new(Some(SHORT));
        lease.over().await;
        lease.hear();
        assert_ne!(lease.left(), Some(Duration::ZERO));
        lease.over().await;
    }

    #[tokio::test]
    async fn lasts_longer_once_it_was_let_go() {
        let lease = Lease::new(Some(PodLease { maker_ms: 60_000, ttl_ms: 30 }));
        let (over, ()) = tokio::join!(lease.over(), async { lease.let_go() });
        assert_eq!(over, (), "the other limit holds at once");
        let lease = Lease::new(Some(SHORT));
        lease.let_go();
        assert!(lease.left().unwrap() > Duration::from_secs(3600));
        assert_eq!(Lease::new(None).left(), None);
    }
}
