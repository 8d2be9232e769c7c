//! *Stored*: values with hints about their worth.

use std::time::Duration;

use kvmem::tier::{TierHints, TierValue};

use super::error::StoreError;
use super::tier::DiskTier;
use crate::device::Device;
use crate::format::{BLOCK, Hints, blocks_of};

/// Returns when a value expires that is of use for `ttl`, in seconds since 1970.
fn expires(ttl: Option<Duration>, now: u32) -> u32 {
    let Some(ttl) = ttl else { return 0 };
    // The second that has begun, and all that the time touches.
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    let expires = u64::from(now).saturating_add(1).saturating_add(seconds);
    // A value that would expire after the clock ends never does.
    u32::try_from(expires).unwrap_or(0)
}

/// Returns the hints of a value that is stored at `now`, in seconds since 1970.
pub(super) fn stored_hints(hints: &TierHints, now: u32) -> Hints {
    Hints { expires: expires(hints.ttl, now), priority: hints.priority.get() as i8 }
}

impl<D: Device> DiskTier<D> {
    /// Stores values, and returns the result of each in the same order. A value replaces that of
    /// the same key; of two with one key in a call, the later one counts. A stored value survives
    /// the process, and a power cut after the next [`sync_all`](Self::sync_all) or checkpoint.
    ///
    /// Values that begin at a multiple of the block are written from where they are; others are
    /// copied.
    pub fn store(&self, values: &[(&[u8], &[u8])]) -> Vec<Result<(), StoreError>> {
        let values: Vec<_> = values.iter().map(|&(key, it)| TierValue::new(key, it)).collect();
        self.store_with(&values)
    }

    /// Stores values, as [`store`](Self::store) does, with hints that say how long they are of use
    /// at least, in whole seconds of the wall clock, rounded up, and which ones to evict first.
    /// Expired values are misses, and are evicted before all others.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use kvmem::tier::{Priority, TierHints, TierValue};
    /// use kvmem_tier::device::MemoryDevice;
    /// use kvmem_tier::{DiskTier, DiskTierOptions};
    ///
    /// let (tier, _) = DiskTier::on(MemoryDevice::new(1 << 20), &DiskTierOptions::default())?;
    /// let ttl = Some(Duration::from_secs(3600));
    /// let hints = TierHints { ttl, priority: Priority::MAX, ..TierHints::default() };
    /// let often = TierValue::new(b"often", b"of much use, and for an hour").with_hints(hints);
    /// assert!(tier.store_with(&[often])[0].is_ok());
    /// # Ok::<(), kvmem_tier::TierError>(())
    /// ```
    pub fn store_with(&self, values: &[TierValue<'_>]) -> Vec<Result<(), StoreError>> {
        let blocks = |value: &TierValue<'_>| u64::from(blocks_of(value.bytes.len() as u64));
        self.doorkeeper.count(values.iter().map(blocks).sum::<u64>() * BLOCK as u64);
        self.store_admitted(values)
    }

    /// Stores values that were [admitted](Self::admits), as [`store_with`](Self::store_with) does,
    /// and counts failures. Their bytes are counted already.
    pub(crate) fn store_admitted(&self, values: &[TierValue<'_>]) -> Vec<Result<(), StoreError>> {
        let results = self.store_groups(values);
        let mut failures = results.iter().filter_map(|result| result.as_ref().err()).peekable();
        if failures.peek().is_some() && !self.is_forked() {
            let mut state = self.state();
            failures.for_each(|error| state.stats.count_failure(error));
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_of_use_for_at_least_its_time() {
        assert_eq!(expires(None, 100), 0);
        for (ttl, at) in [(0, 101), (1, 102), (1000, 102), (1001, 103), (59_999, 161)] {
            let expires = expires(Some(Duration::from_millis(ttl)), 100);
            assert_eq!(expires, at, "{ttl} ms");
            // The clock may show 100 until just before 101.
            assert!(u64::from(expires) * 1000 >= 100_999 + ttl);
        }
        assert_eq!(expires(Some(Duration::MAX), 100), 0);
    }
}
