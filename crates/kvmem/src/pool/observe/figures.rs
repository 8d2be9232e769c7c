//! *Figures*: what a pool is like now, read without a lock.

use serde::Serialize;

use super::Failures;
use crate::pool::Pool;

/// Figures of a [pool](Pool), all in bytes but the last few. Of about one moment: threads allocate
/// and free while they are read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolFigures {
    /// What blocks could have, if all of it were ready and nothing in quarantine.
    pub capacity: u64,
    /// What can be used, in use or not.
    pub ready: u64,
    /// What is kept from use because it has failed.
    pub quarantined: u64,
    /// What blocks have that are alive.
    pub allocated: u64,
    /// What was asked for them: as much, since sizes are not rounded.
    pub requested: u64,
    /// What is cached by threads, and in depots, for the next request of its size. It counts as
    /// free.
    pub cached: u64,
    /// What is ready and in no block.
    pub free: u64,
    /// The longest free range. What was freed last, sixteen ranges at most, may not have been
    /// joined with its neighbours yet.
    pub largest_free: u64,
    /// Blocks alive.
    pub allocations: u64,
    /// Requests that were refused, since the pool was built.
    pub failures: Failures,
    /// Times that what was cached was taken back because a request found no room.
    pub reclaims: u64,
    /// Seconds that populating has taken so far.
    pub populate_seconds: f64,
    /// Seconds that calls of each registrar have taken so far, by name, in order. Calls that went
    /// on at the same time each count.
    pub register_seconds: Vec<(String, f64)>,
}

impl Pool {
    /// Figures of the pool. Takes no lock that a request could wait for, so that it can be called
    /// as often as one likes; see [`metrics`](Self::metrics) for what is exact at one moment
    /// and costs others some nanoseconds. O(threads × classes).
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
