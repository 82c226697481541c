//! Progress of long operations, and who listens to it.

use std::fmt;
use std::sync::Arc;

use crate::snapshot::Progress;

/// Is told how far long work is.
#[derive(Clone)]
pub struct ProgressListener(Arc<dyn Fn(Progress) + Send + Sync>);

impl ProgressListener {
    /// Has `listen` called now and then while long work goes on. It should be quick.
    pub fn new(listen: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listen))
    }

    /// Says how far it is.
    pub fn on_progress(&self, progress: Progress) {
        (self.0)(progress);
    }

    /// What is called, for whoever holds it as long as this.
    pub(super) fn as_callback(&self) -> &(dyn Fn(Progress) + Send + Sync) {
        &*self.0
    }
}

impl fmt::Debug for ProgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProgressListener")
    }
}
