//! [`TierOrigin`]: the name of a value in a lower tier.

use std::num::NonZeroU64;

/// The name of a value that a lower tier has. A tier assigns to each value that it stores a name of
/// its own, which no value of any tier in this process ever has again: a value whose origin the
/// tier still has under the key was not changed since, and need not be written again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TierOrigin(NonZeroU64);

impl TierOrigin {
    /// Makes an origin of a number that is unique in this process.
    #[must_use]
    pub fn new(number: NonZeroU64) -> TierOrigin {
        TierOrigin(number)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> NonZeroU64 {
        self.0
    }
}
