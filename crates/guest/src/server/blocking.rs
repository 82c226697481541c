//! The one way to the disk: on another thread, and not for ever.

use std::time::Duration;

use bastide_proto::{Fault, FaultKind};

use super::call::fault;
use super::credentials::{act, who};

/// How many threads wait for disks at most.
pub(crate) const MAX_THREADS: usize = 64;

/// How long one piece of work may take. Pieces are small, so whatever takes longer waits for a file
/// system that does not answer.
const MOST: Duration = Duration::from_secs(20);

/// Does a small piece of work that may block. It goes on in its thread if it takes too long; the
/// caller does not. A call that acts for a user acts for that user there, too.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let who = who();
    let work = move || match who {
        Some(who) => act(&who, work),
        None => Ok(work()),
    };
    match tokio::time::timeout(MOST, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(Ok(done))) => Ok(done),
        Ok(Ok(Err(error))) => Err(fault("cannot act for the user", &error)),
        Ok(Err(_)) => Err(Fault::new(FaultKind::Internal, "the guest failed at a file")),
        Err(_) => {
            let message = format!("the file system did not answer within {} s", MOST.as_secs());
            Err(Fault::new(FaultKind::Stuck, message))
        }
    }
}
