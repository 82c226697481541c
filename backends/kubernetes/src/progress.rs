//! How far a pod has come on its way, and when its guest is called.

use std::time::Duration;

use bastide::{Error, ErrorKind, Result};
use tokio::time::Instant;

use crate::failure::shortened;
use crate::objects::{OwnerObject, Pod};

/// When the guest is called for the first time after a node has its pod: most are there by then, and the cluster says so
/// later. One that is not is called when the cluster says that its container runs: each call is a request to the server.
const FIRST_CALL: Duration = Duration::from_millis(600);

/// When it is called again that runs and does not answer.
const LATE_CALL: Duration = Duration::from_millis(250);

/// How often a guest whose container runs is called.
const LATE_CALLS: u32 = 40;

/// How far a pod has come.
pub(crate) struct Progress<'a> {
    pub(crate) pod: Option<Pod>,
    /// The claim of a pool, as it was when somebody looked why there is no pod.
    pub(crate) claim: Option<OwnerObject>,
    /// When the guest is called next, once its pod is on a node.
    pub(crate) next_call: Option<Instant>,
    late: u32,
    report: Option<&'a (dyn Fn(&str) + Send + Sync)>,
    last: String,
}

impl<'a> Progress<'a> {
    pub(crate) fn new(report: Option<&'a (dyn Fn(&str) + Send + Sync)>) -> Self {
        Self { pod: None, claim: None, next_call: None, late: 0, report, last: String::new() }
    }

    /// Notes how the pod is now, and when to call its guest.
    pub(crate) fn see(&mut self, pod: Pod) {
        let now = Instant::now();
        let was_placed = self.pod.as_ref().is_some_and(|before| !before.spec.node_name.is_empty());
        let was_running = self.pod.as_ref().is_some_and(Pod::is_running);
        if pod.is_running() && !was_running {
            self.next_call = Some(now);
        } else if !pod.spec.node_name.is_empty() && !was_placed {
            self.next_call = Some(now + FIRST_CALL);
        }
        let phase = match (pod.spec.node_name.as_str(), pod.condition("PodScheduled")) {
            ("", Some(scheduled)) if scheduled.status == "False" => shortened(&scheduled.message),
            ("", _) => String::new(),
            (node, _) => format!("the pod is on node {node}"),
        };
        self.say(phase);
        self.pod = Some(pod);
    }

    /// Says what is waited for, once.
    pub(crate) fn say(&mut self, phase: String) {
        if let Some(report) = self.report
            && !phase.is_empty()
            && phase != self.last
        {
            report(&phase);
            self.last = phase;
        }
    }

    /// Notes that the guest did not answer, and when to call it again.
    pub(crate) fn called(&mut self, why: String) -> Result<()> {
        let is_running = self.pod.as_ref().is_some_and(Pod::is_running);
        let wait = match is_running {
            true => {
                self.late += 1;
                (self.late < LATE_CALLS).then_some(LATE_CALL)
            }
            false => None,
        };
        self.next_call = wait.map(|wait| Instant::now() + wait);
        if is_running && wait.is_none() {
            let message =
                format!("the container runs, but its guest cannot be reached: {}", shortened(&why));
            return Err(Error::new(ErrorKind::BackendLost, message));
        }
        Ok(())
    }
}
