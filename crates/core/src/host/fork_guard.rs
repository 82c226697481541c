//! Forking a program that has sessions.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::backend::hold_descriptors;
use crate::{events, state};

/// How long a transaction on the index is waited for.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Held by a thread that forks, from before until after: no other thread is then in the middle of what
/// a child could never finish, such as a transaction under locks of SQLite's.
///
/// A child has none of its parent's threads. Clients and sessions made before are neither to be used
/// in it nor to be dropped; new ones work.
pub struct ForkGuard(#[expect(dead_code, reason = "held, and let go of")] [Box<dyn Any>; 4]);

impl ForkGuard {
    /// Waits until no other thread is in the middle of anything, if not for ever.
    #[must_use]
    pub fn acquire() -> Self {
        Self([
            Box::new(state::lock_for_fork()),
            Box::new(hold_descriptors()),
            Box::new(events::lock_for_fork()),
            Box::new(state::hold_index(TIMEOUT)),
        ])
    }
}

impl fmt::Debug for ForkGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkGuard").finish_non_exhaustive()
    }
}
