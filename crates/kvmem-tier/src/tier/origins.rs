//! *Origins*: names of values for the caches above a tier.
//!
//! A value that a cache has fetched and evicts unchanged is on the disk already. Its length and
//! checksum do not show that: another value may have the same ones. The cache therefore stores the
//! *origin* of a value that it fetches: the number of the tier, and that of the change that stored
//! the value. As long as the tier has the value of that change under the key, it has these bytes.
//!
//! Numbers of changes only grow. The index has their lower halves, so an old entry may get a
//! higher number than it had. It is still lower than that of any later change, and thus never one
//! that another value of the key had.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmem::tier::TierOrigin;

/// Bits of the number of a change. The rest is that of the tier.
const CHANGE_BITS: u32 = 40;

/// Names the values of one tier.
pub(super) struct Origins {
    /// The number of the tier in this process, from 1.
    tier: u64,
}

impl Origins {
    /// Names the values of a tier that is being opened.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the number itself is passed on.
        Origins { tier: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the origin of the value that the change `number` stored; `None` when no number is
    /// left, of tiers or of changes.
    pub(super) fn of(&self, number: u64) -> Option<TierOrigin> {
        let is_short = number >> CHANGE_BITS == 0 && self.tier >> (u64::BITS - CHANGE_BITS) == 0;
        let bits = NonZeroU64::new(self.tier << CHANGE_BITS | number)?;
        is_short.then(|| TierOrigin::new(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_each_tier_has_a_name_of_its_own() {
        let (a, b) = (Origins::new(), Origins::new());
        let last = (1 << CHANGE_BITS) - 1;
        let all = [a.of(0), a.of(1), a.of(last), b.of(0), b.of(1), b.of(last)];
        for (place, one) in all.iter().enumerate() {
            assert!(one.is_some() && !all[..place].contains(one));
        }
        assert_eq!(a.of(last + 1), None);
        assert_eq!(Origins { tier: 1 << 24 }.of(1), None);
        assert!(Origins { tier: (1 << 24) - 1 }.of(1).is_some());
    }
}
