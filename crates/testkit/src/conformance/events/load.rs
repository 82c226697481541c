//! Many events.

use crate::suite::Trial;

pub(super) const TRIALS: &[Trial] = &[];
