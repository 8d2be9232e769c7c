//! *Figures*: the current state of a pool, read without a lock.

use serde::Serialize;

use super::Pool;
use super::observe::Failures;

/// Figures of a [pool](Pool), all in bytes but the last few. They are of about one moment: threads
/// allocate and free during the reading. A magazine that moves between a thread and a depot
/// meanwhile may be missing from `cached`, or be in it twice. Its ranges then count as `allocated`,
/// or as `free` twice.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolFigures {
    /// Bytes that blocks could have if all of the pool were ready and nothing in quarantine.
    pub capacity: u64,
    /// Bytes that are ready, in use or free.
    pub ready: u64,
    /// Bytes that the pool withholds from use because they failed or their user reported them.
    pub quarantined: u64,
    /// Bytes of all live blocks.
    pub allocated: u64,
    /// Bytes requested for all live blocks; equals `allocated`, since sizes are not rounded.
    pub requested: u64,
    /// Bytes that threads and depots cache for requests of the same size. They count as free.
    pub cached: u64,
    /// Bytes that are ready and in no block.
    pub free: u64,
    /// Length of the longest free range. The ranges freed last, at most sixteen, may not be
    /// coalesced with their neighbours yet.
    pub largest_free: u64,
    /// Number of live blocks.
    pub allocations: u64,
    /// Requests that have failed since the pool was built.
    pub failures: Failures,
    /// Number of times that cached bytes were returned because a request found no space.
    pub reclaims: u64,
    /// Seconds that populating has taken so far.
    pub populate_seconds: f64,
    /// Seconds that calls of each registrar have taken so far, by name, in order. Concurrent calls
    /// each count in full.
    pub register_seconds: Vec<(String, f64)>,
}

impl Pool {
    /// Returns figures of the pool. Takes no lock that a request could wait for, so frequent calls
    /// are harmless. [`metrics`](Self::metrics) is exact at one moment and costs other threads some
    /// nanoseconds. O(threads × classes).
    #[must_use]
    pub fn figures(&self) -> PoolFigures {
        let owner = self.owner();
        let (provision, snapshot) = owner.provisioning.look(|| self.space.snapshot());
        let capacity = snapshot.capacity.saturating_sub(provision.withheld);
        let allocated = snapshot.allocated.saturating_sub(provision.withheld);
        PoolFigures {
            capacity: snapshot.capacity,
            ready: provision.ready,
            quarantined: provision.quarantined,
            allocated,
            requested: allocated,
            cached: snapshot.cached,
            free: capacity.saturating_sub(allocated),
            largest_free: snapshot.largest_free,
            allocations: snapshot.live.saturating_sub(provision.ranges),
            failures: owner.failures.failures(),
            reclaims: snapshot.reclaims,
            populate_seconds: owner.provisioning.provisioner.set_up.populate_seconds(),
            register_seconds: owner.provisioning.provisioner.set_up.register_seconds(),
        }
    }
}
