//! Saving once more where the way to a session was closed for a moment.
//!
//! A save goes over the link, and a daemon is asked only for the way to the guest. So that is what is
//! tried again; what a keeper of snapshots fails with is its own to judge.

use std::error::Error as StdError;
use std::future::Future;
use std::iter::successors;
use std::time::Duration;

use crate::{Error, Result};

/// How often something is tried at most.
const ATTEMPTS: u32 = 3;

/// How long is waited before the second time; before the third, twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// What a daemon, or a proxy before it, answers with when it may do better in a moment.
const PASSING: [u16; 4] = [500, 502, 503, 504];

/// Does the part of a save that asks a daemon, again if a daemon answered that it cannot just now. Any other failure, and the
/// last one, is what it fails with.
pub(crate) async fn saving<T, F>(mut attempt: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if is_passing(&error) => tokio::time::sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    attempt().await
}

/// Whether a daemon's answer is among the causes of an error, and is one that passes.
fn is_passing(error: &Error) -> bool {
    let first: &(dyn StdError + 'static) = error;
    let mut causes = successors(Some(first), |cause| (**cause).source());
    causes.any(|cause| {
        let status = cause.downcast_ref::<Error>().and_then(Error::status);
        status.is_some_and(|status| PASSING.contains(&status))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;
    use crate::ErrorKind;

    fn answered(status: u16) -> Error {
        let answer = Error::new(ErrorKind::Io, "the daemon says no").with_status(status);
        Error::new(ErrorKind::AgentLost, "cannot reach the session").with_source(answer)
    }

    /// How often something is tried that fails like this so many times, after how many milliseconds it
    /// is over, and whether it succeeds.
    async fn tried(failure: impl Fn() -> Error, failures: u32) -> (u32, u128, bool) {
        let (count, began) = (Cell::new(0), Instant::now());
        let done = saving(|| {
            count.set(count.get() + 1);
            let failed = count.get() <= failures;
            std::future::ready(if failed { Err(failure()) } else { Ok(()) })
        });
        let is_done = done.await.is_ok();
        (count.get(), began.elapsed().as_millis(), is_done)
    }

    #[tokio::test(start_paused = true)]
    async fn tries_three_times_what_may_pass_and_nothing_else_twice() {
        assert_eq!(tried(|| answered(503), 0).await, (1, 0, true));
        for status in [500, 502, 503, 504] {
            assert_eq!(tried(|| answered(status), 1).await, (2, 250, true), "{status}");
            assert_eq!(tried(|| answered(status), 2).await, (3, 750, true), "{status}");
            assert_eq!(tried(|| answered(status), 9).await, (3, 750, false), "{status}");
        }
        for status in [400, 404, 408, 409, 425, 429, 501, 505] {
            assert_eq!(tried(|| answered(status), 9).await, (1, 0, false), "{status}");
        }
        let lost = || Error::new(ErrorKind::AgentLost, "the link closed").with_retryable(true);
        assert_eq!(tried(lost, 9).await, (1, 0, false), "that it may be tried again is no answer");
    }
}
