//! The runs that a sandbox has prepared and not cleaned up yet.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bastide::{Error, ErrorKind, Result};

use crate::RunSession;

/// What is held of each run, by its id.
pub(crate) struct LiveRuns<T>(Mutex<HashMap<String, Arc<T>>>);

impl<T> LiveRuns<T> {
    pub(crate) fn insert(&self, id: String, live: T) {
        self.all().insert(id, Arc::new(live));
    }

    pub(crate) fn get(&self, session: &RunSession) -> Result<Arc<T>> {
        self.all().get(&session.id).cloned().ok_or_else(|| {
            let message = format!("the run {} was not prepared here, or is over", session.id);
            Error::new(ErrorKind::NotFound, message)
        })
    }

    pub(crate) fn remove(&self, session: &RunSession) {
        self.all().remove(&session.id);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for LiveRuns<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for LiveRuns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveRuns").finish_non_exhaustive()
    }
}
