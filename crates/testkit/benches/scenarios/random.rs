//! Numbers that are the same in each run, so that a result can be looked at again (xorshift).

#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The seed must not be 0.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap_or(0) % end.max(1)
    }
}
