//! What waits for somebody's answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bastide_proto::egress::{Answer, PendingFlow};
use tokio::sync::oneshot;

/// How much waits at a time; more is denied at once.
const MAX_PENDING: usize = 64;

#[derive(Debug)]
struct Waiting {
    flow: PendingFlow,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Everything that waits in a session.
#[derive(Debug, Default)]
pub(crate) struct Asks(Mutex<(u64, BTreeMap<u64, Waiting>)>);

impl Asks {
    fn inner(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Waiting>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer; none if nobody gives one in time, or too much waits already.
    pub(crate) async fn ask(&self, mut flow: PendingFlow, patience: Duration) -> Option<Answer> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut inner = self.inner();
            if inner.1.len() >= MAX_PENDING {
                return None;
            }
            inner.0 += 1;
            let id = inner.0;
            flow.id = id;
            inner.1.insert(id, Waiting { flow, until: Instant::now() + patience, answer: sender });
            id
        };
        // Whoever asked may be gone before anybody answers.
        let _forget = Forget { asks: self, id };
        tokio::time::timeout(patience, receiver).await.ok()?.ok()
    }

    /// Everything that waits.
    pub(crate) fn pending(&self) -> Vec<PendingFlow> {
        let left = |waiting: &Waiting| {
            let left = waiting.until.saturating_duration_since(Instant::now());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            PendingFlow { left_ms, ..waiting.flow.clone() }
        };
        self.inner().1.values().map(left).collect()
    }

    /// Answers something; tells what it was, or none if it does not wait any more.
    pub(crate) fn answer(&self, id: u64, answer: Answer) -> Option<PendingFlow> {
        let waiting = self.inner().1.remove(&id)?;
        waiting.answer.send(answer).ok()?;
        Some(waiting.flow)
    }
}

struct Forget<'a> {
    asks: &'a Asks,
    id: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.asks.inner().1.remove(&self.id);
    }
}
