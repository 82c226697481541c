//! Makes inputs from inputs.

/// Longer inputs only cost time.
const MAX_LENGTH: usize = 64 << 10;

/// Numbers that sit on edges, as text.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "127",
    "255",
    "256",
    "65535",
    "65536",
    "2147483647",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    "0.1",
];

/// A source of mutations; the same seed makes the same ones.
pub(super) struct Mutator {
    state: u64,
    words: &'static [&'static str],
}

impl Mutator {
    pub(super) fn new(seed: u64, words: &'static [&'static str]) -> Self {
        Self { state: seed, words }
    }

    /// An input made from one or two of `seeds`.
    pub(super) fn next(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = self.pick(seeds).cloned().unwrap_or_default();
        for _ in 0..=self.below(6) {
            self.mutate(&mut input, seeds);
        }
        input.truncate(MAX_LENGTH);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(9) {
            0 => {
                let bit = 1 << self.below(8);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= bit;
                }
            }
            1 => {
                let byte = self.byte();
                if let Some(place) = input.get_mut(at) {
                    *place = byte;
                }
            }
            2 => {
                let bytes: Vec<u8> = (0..=self.below(8)).map(|_| self.byte()).collect();
                input.splice(at..at, bytes);
            }
            3 => {
                let end = input.len().min(at + 1 + self.below(32));
                input.drain(at..end);
            }
            4 => {
                let end = input.len().min(at + 1 + self.below(64));
                let copy = input.get(at..end).unwrap_or_default().to_vec();
                let to = self.below(input.len() + 1);
                // Once is a copy, many times is a long one.
                let times = if self.below(8) == 0 { 1 + self.below(200) } else { 1 };
                input.splice(to..to, copy.repeat(times));
            }
            5 => {
                let other = self.pick(seeds).cloned().unwrap_or_default();
                let start = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(other.get(start..).unwrap_or_default());
            }
            6 => {
                let word = self.pick(self.words).copied().unwrap_or_default();
                input.splice(at..at, word.bytes());
            }
            7 => self.replace_number(input, at),
            _ => input.truncate(at),
        }
    }

    /// Puts another number in place of the first one behind `at`.
    fn replace_number(&mut self, input: &mut Vec<u8>, at: usize) {
        let number = self.pick(NUMBERS).copied().unwrap_or_default();
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(start) = input.iter().skip(at).position(is_digit).map(|offset| at + offset) else {
            return;
        };
        let length = input.iter().skip(start).take_while(|byte| is_digit(byte)).count();
        input.splice(start..start + length, number.bytes());
    }

    fn byte(&mut self) -> u8 {
        self.random().to_le_bytes()[0]
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.random() % bound).unwrap_or(0)
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
