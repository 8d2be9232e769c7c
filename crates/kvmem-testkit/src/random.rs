//! Pseudo-random numbers that are the same every time.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of numbers that depends only on its seed.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// Creates the stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a number of 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.random_range(0..end)
    }

    /// Returns a number below `end`; its length in bits is uniform, so small numbers are frequent.
    pub fn log_below(&mut self, end: u64) -> u64 {
        let shift = self.0.random_range(0..64 - end.leading_zeros().min(63));
        self.below((end >> shift).max(1))
    }

    /// Returns true with probability 1/`n`.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
