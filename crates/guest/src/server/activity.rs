//! When something was last done in the session, for a lease that ends when nothing is.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What goes on, and when the last of it ended.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// How many calls are being answered.
    going_on: usize,
    /// When the last one ended, by a clock that also runs while the machine sleeps, and that nobody sets.
    last: Duration,
}

impl Default for Activity {
    fn default() -> Self {
        Self(Mutex::new(State { going_on: 0, last: now() }))
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something begins; it goes on for as long as this is held.
    pub(crate) fn begin(&self) -> ActivityGuard<'_> {
        self.lock().going_on += 1;
        ActivityGuard(self)
    }

    /// Something happened just now.
    pub(crate) fn touch(&self) {
        self.lock().last = now();
    }

    /// How long nothing has gone on.
    pub(crate) fn idle(&self) -> Duration {
        let state = self.lock();
        match state.going_on {
            0 => now().saturating_sub(state.last),
            _ => Duration::ZERO,
        }
    }
}

/// Something that goes on.
#[derive(Debug)]
pub(crate) struct ActivityGuard<'a>(&'a Activity);

impl Drop for ActivityGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.going_on -= 1;
        state.last = now();
    }
}

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_idle_only_while_nothing_goes_on() {
        let activity = Activity::default();
        activity.lock().last = Duration::ZERO;
        assert!(activity.idle() > Duration::ZERO);
        let one = activity.begin();
        let other = activity.begin();
        drop(one);
        assert_eq!(activity.idle(), Duration::ZERO);
        drop(other);
        assert!(activity.idle() < now(), "it counts from the end of the last");
        activity.lock().last = Duration::ZERO;
        let before = activity.idle();
        activity.touch();
        assert!(activity.idle() < before);
    }
}
