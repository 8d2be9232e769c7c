//! *Recent sizes*: the sizes of the latest requests that succeeded.

/// Number of recent requests stored.
pub(super) const RECENT: usize = 1024;

/// The recent request sizes; a new one overwrites the oldest.
#[derive(Clone)]
pub(super) struct RecentSizes {
    sizes: Box<[u64; RECENT]>,
    /// Requests so far.
    seen: u64,
}

impl RecentSizes {
    pub(super) fn new() -> Self {
        RecentSizes { sizes: Box::new([0; RECENT]), seen: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sizes)
    }

    /// Returns the number of requests so far.
    #[inline(always)]
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Records a request; returns the number of requests so far.
    #[inline(always)]
    pub(super) fn record(&mut self, size: u64) -> u64 {
        self.sizes[self.seen as usize % RECENT] = size;
        self.seen += 1;
        self.seen
    }

    /// Returns the size of the latest request.
    #[inline(always)]
    pub(super) fn latest(&self) -> u64 {
        self.sizes[self.seen.wrapping_sub(1) as usize % RECENT]
    }

    /// Returns the last `n` sizes, at most [`RECENT`], the oldest first.
    pub(super) fn last(&self, n: u64) -> impl Iterator<Item = u64> + Clone {
        (self.seen.saturating_sub(n)..self.seen).map(|i| self.sizes[i as usize % RECENT])
    }

    /// Returns all stored sizes, in no order.
    pub(super) fn stored(&self) -> &[u64] {
        &self.sizes[..self.seen.min(RECENT as u64) as usize]
    }

    /// Returns the greatest stored size, at least 1, and the mean of the stored sizes, of which
    /// there is at least one.
    pub(super) fn largest_and_mean(&self) -> (u64, u64) {
        let sizes = self.stored();
        let largest = sizes.iter().copied().max().unwrap_or(0).max(1);
        let mean = if largest < u64::MAX / RECENT as u64 {
            sizes.iter().sum::<u64>() / sizes.len() as u64
        } else {
            (sizes.iter().map(|&size| u128::from(size)).sum::<u128>() / sizes.len() as u128) as u64
        };
        (largest, mean)
    }
}
