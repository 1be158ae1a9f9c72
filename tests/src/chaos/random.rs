//! Pseudo-random numbers from a seed.

use std::time::Duration;

/// A pseudo-random number generator (splitmix64, which suffices for choices); the same seed gives the same
/// numbers.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// The generator of this seed and stream; the streams of a seed are independent.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xD605_0BD1_55A5_A9E7));
        mixed.next();
        mixed
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// An index into a non-empty list of this length.
    pub(super) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("lists are short");
        usize::try_from(self.below(length)).expect("it is below a usize")
    }

    /// True with a probability of `of` percent.
    pub(super) fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }

    pub(super) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most.saturating_sub(least) + 1))
    }
}
