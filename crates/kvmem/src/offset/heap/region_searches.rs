//! *Region searches*: when to search for room for a small-object region.
//!
//! If the far end is permanently full of small objects, a search for room reads past all of them
//! and fails, and so would the next one. After each search that fails there is therefore a pause
//! before the next, twice as long as the previous pause.

/// Requests between a failed search and the next one: after the first failure, and at most.
const MIN_PAUSE: u64 = 8;
const MAX_PAUSE: u64 = 1024;

/// When to search for room for a region.
#[derive(Default)]
pub(super) struct RegionSearches {
    /// Number of requests before which no search is made.
    next_at: u64,
    /// Length of the last pause; 0 after a search that found room.
    pause: u64,
}

impl RegionSearches {
    /// Returns whether a search is due after `seen` requests.
    pub(super) fn are_due(&self, seen: u64) -> bool {
        seen >= self.next_at
    }

    pub(super) fn found(&mut self) {
        self.pause = 0;
    }

    pub(super) fn found_nothing(&mut self, seen: u64) {
        self.pause = (2 * self.pause).clamp(MIN_PAUSE, MAX_PAUSE);
        self.next_at = seen + self.pause;
    }

    /// Returns the length of the last pause.
    #[cfg(all(test, not(loom)))]
    pub(super) fn pause(&self) -> u64 {
        self.pause
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn failed_searches_become_rare_until_one_succeeds() {
        let mut looks = RegionSearches::default();
        let mut made = Vec::new();
        for seen in 0..5000 {
            if looks.are_due(seen) {
                looks.found_nothing(seen);
                made.push(seen);
            }
        }
        assert_eq!(made[..5], [0, 8, 24, 56, 120]);
        assert_eq!(looks.pause(), MAX_PAUSE);
        assert_eq!(made[7..], [1016, 2040, 3064, 4088]);
        looks.found();
        looks.found_nothing(5000);
        assert!(looks.are_due(5000 + MIN_PAUSE));
    }
}
