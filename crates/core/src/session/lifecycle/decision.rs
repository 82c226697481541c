//! What a start has to do.

/// What a start finds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StartState {
    /// There is a snapshot.
    pub(super) is_restorable: bool,
    /// The workspace of before is there.
    pub(super) is_there: bool,
    /// It looks as it did when it was saved.
    pub(super) is_as_saved: bool,
    /// Changes since then are given up.
    pub(super) discards: bool,
}

/// What a start does before it makes ephemeral entries anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Lays out everything.
    LayOut,
    /// Brings back what was saved.
    Restore,
    /// Uses what is there.
    Use,
}

/// A workspace that is there is used: a snapshot is older than it, or the same. The reference restores
/// the snapshot over one that changed since; here somebody has to ask for that, for it loses work.
pub(super) fn decide(situation: StartState) -> Plan {
    let StartState { is_restorable, is_there, is_as_saved, discards } = situation;
    match (is_restorable, is_there) {
        (false, false) => Plan::LayOut,
        (false, true) => Plan::Use,
        (true, false) => Plan::Restore,
        (true, true) if discards && !is_as_saved => Plan::Restore,
        (true, true) => Plan::Use,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_gives_up_work_unless_asked() {
        for bits in 0..16_u8 {
            let bit = |at: u8| bits & (1 << at) != 0;
            let situation = StartState {
                is_restorable: bit(0),
                is_there: bit(1),
                is_as_saved: bit(2),
                discards: bit(3),
            };
            let want = match (bit(0), bit(1), bit(2), bit(3)) {
                (false, false, ..) => Plan::LayOut,
                (true, false, ..) | (true, true, false, true) => Plan::Restore,
                _ => Plan::Use,
            };
            assert_eq!(decide(situation), want, "{situation:?}");
        }
    }
}
