//! What waits for somebody's answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bastide_proto::egress::{Answer, PendingFlow};
use tokio::sync::oneshot;

/// How much waits at a time; more is denied at once.
const MAX_PENDING: usize = 64;

#[derive(Debug)]
struct PendingApproval {
    flow: PendingFlow,
    until: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Everything that waits in a session.
#[derive(Debug, Default)]
pub(crate) struct PendingApprovals(Mutex<(u64, BTreeMap<u64, PendingApproval>)>);

impl PendingApprovals {
    fn inner(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, PendingApproval>)> {
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
            inner.1.insert(
                id,
                PendingApproval { flow, until: Instant::now() + patience, answer: sender },
            );
            id
        };
        // Whoever asked may be gone before anybody answers.
        let _remove = RemoveOnDrop { approvals: self, id };
        tokio::time::timeout(patience, receiver).await.ok()?.ok()
    }

    /// Everything that waits.
    pub(crate) fn pending(&self) -> Vec<PendingFlow> {
        let left = |approval: &PendingApproval| {
            let left = approval.until.saturating_duration_since(Instant::now());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            PendingFlow { left_ms, ..approval.flow.clone() }
        };
        self.inner().1.values().map(left).collect()
    }

    /// Answers something; tells what it was, or none if it does not wait any more.
    pub(crate) fn answer(&self, id: u64, answer: Answer) -> Option<PendingFlow> {
        let approval = self.inner().1.remove(&id)?;
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
        self.approvals.inner().1.remove(&self.id);
    }
}
