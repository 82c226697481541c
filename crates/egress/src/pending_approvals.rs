//! What waits for somebody's answer.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bastide_proto::egress::{Answer, PendingFlow};
use tokio::sync::oneshot;

/// How much waits at a time; more is denied at once.
const MAX_PENDING: usize = 64;

/// Numbers have six digits.
const LEAST_NUMBER: u64 = 100_000;

#[derive(Debug)]
struct PendingApproval {
    flow: PendingFlow,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Everything that waits in a session.
#[derive(Debug, Default)]
pub(crate) struct PendingApprovals {
    waiting: Mutex<Waiting>,
    numbers: RandomState,
}

#[derive(Debug, Default)]
struct Waiting {
    /// How many there were.
    count: u64,
    by_number: BTreeMap<u64, PendingApproval>,
}

impl PendingApprovals {
    fn inner(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that nothing else had lately, also of an earlier process: whoever looked at what waited there must not
    /// answer something else here.
    fn next_number(&self, waiting: &mut Waiting) -> u64 {
        loop {
            waiting.count += 1;
            let number = LEAST_NUMBER + self.numbers.hash_one(waiting.count) % (9 * LEAST_NUMBER);
            if !waiting.by_number.contains_key(&number) {
                return number;
            }
        }
    }

    /// Waits for an answer; none if nobody gives one in time, or too much waits already.
    pub(crate) async fn wait_for_approval(
        &self,
        mut flow: PendingFlow,
        time_limit: Duration,
    ) -> Option<Answer> {
        let (sender, receiver) = oneshot::channel();
        let id = {
            let mut inner = self.inner();
            if inner.by_number.len() >= MAX_PENDING {
                return None;
            }
            let id = self.next_number(&mut inner);
            flow.id = id;
            inner.by_number.insert(
                id,
                PendingApproval { flow, until: Instant::now() + time_limit, answer: sender },
            );
            id
        };
        // Whoever asked may be gone before anybody answers.
        let _remove = RemoveOnDrop { approvals: self, id };
        tokio::time::timeout(time_limit, receiver).await.ok()?.ok()
    }

    /// Everything that waits; what waits for an answer the shortest comes first.
    pub(crate) fn pending(&self) -> Vec<PendingFlow> {
        let left = |approval: &PendingApproval| {
            let left = approval.until.saturating_duration_since(Instant::now());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            PendingFlow { left_ms, ..approval.flow.clone() }
        };
        let mut pending: Vec<_> = self.inner().by_number.values().map(left).collect();
        pending.sort_by_key(|flow| flow.left_ms);
        pending
    }

    /// Answers something; tells what it was, or none if it does not wait any more.
    pub(crate) fn answer(&self, id: u64, answer: Answer) -> Option<PendingFlow> {
        let approval = self.inner().by_number.remove(&id)?;
        approval.answer.send(answer).ok()?;
        Some(approval.flow)
    }
}

struct RemoveOnDrop<'a> {
    approvals: &'a PendingApprovals,
    id: u64,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.approvals.inner().by_number.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_those_of_an_earlier_process() {
        let (before, after) = (PendingApprovals::default(), PendingApprovals::default());
        let numbers = |approvals: &PendingApprovals| {
            let mut waiting = Waiting::default();
            (0..8).map(|_| approvals.next_number(&mut waiting)).collect::<Vec<_>>()
        };
        let (old, new) = (numbers(&before), numbers(&after));
        assert!(old.iter().chain(&new).all(|number| (100_000..1_000_000).contains(number)));
        // A few may be the same by chance.
        assert!(old.iter().filter(|number| new.contains(number)).count() < 3, "{old:?} {new:?}");
    }
}
