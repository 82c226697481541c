//! The moments at which others may come between two steps of what this process does. Trials come at just these.

/// Such a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailPoint {
    /// Packs were written anew, and those they replace are in their place.
    Rewritten,
    /// Packs were put aside, and are not removed yet.
    PutAside,
    /// A pack is not in its place, and was not looked for elsewhere yet.
    NotInItsPlace,
}

/// Says that a moment has come.
#[cfg(not(test))]
pub(super) fn fail_point(_step: FailPoint) {}

#[cfg(test)]
pub(super) use trial::{at, fail_point};

#[cfg(test)]
mod trial {
    use std::cell::RefCell;

    use super::FailPoint;

    type Action = Box<dyn FnOnce()>;

    thread_local! {
        /// What comes between, and when. It comes once.
        static NEXT: RefCell<Option<(FailPoint, Action)>> = const { RefCell::new(None) };
    }

    /// Does something at the next such moment on this thread.
    pub(in crate::snapshot::store) fn at(step: FailPoint, act: impl FnOnce() + 'static) {
        NEXT.set(Some((step, Box::new(act))));
    }

    pub(in crate::snapshot::store) fn fail_point(step: FailPoint) {
        let act = NEXT.with_borrow_mut(|next| next.take_if(|(wanted, _)| *wanted == step));
        if let Some((_, act)) = act {
            act();
        }
    }
}
