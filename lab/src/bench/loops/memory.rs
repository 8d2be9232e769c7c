//! The memory of the allocator itself.

use anyhow::Result;
use kvmem_testkit::workload::{Sizes, stream};

use super::{REQUESTS, VICTIMS};
use crate::bench::contender::{Contender, Space};
use crate::bench::live_set::LiveSet;
use crate::bench::machine::resident_bytes;

/// Live objects in [`per_live`].
pub const LIVE: usize = 1_000_000;
/// The space in [`per_live`]: objects of 4 to 64 KiB fill about half of it.
pub const POOL: u64 = 64 << 30;
/// The space in [`resident`].
pub const RESIDENT_POOL: u64 = 1 << 40;
/// The published allocator's default limit of live objects.
const MAX_LIVE: usize = (1 << 20) - 1;

/// Returns the bytes of metadata per live object, handle included, after `churn` more than `live`
/// objects were allocated and `churn` evicted. Without churn the objects are adjacent; with churn
/// there are holes between them, which also need metadata.
///
/// `None` if the contender does not report its metadata.
pub fn per_live<C: Contender>(seed: u64, live: usize, churn: usize) -> Result<Option<f64>> {
    let space = Space { capacity: POOL, max_live: live + churn };
    let sizes = Sizes::Uniform { min: 4 << 10, max: 64 << 10 };
    let mut set = LiveSet::new(C::create(space)?, live + churn, stream(seed, VICTIMS));
    let mut requests = stream(seed, REQUESTS);
    for _ in 0..live + churn {
        set.put(sizes.sample(&mut requests))?;
    }
    for _ in 0..churn {
        set.evict();
    }
    let handle = size_of::<C::Handle>() as f64;
    Ok(set.space().metadata_bytes().map(|bytes| bytes as f64 / set.len() as f64 + handle))
}

/// Returns the bytes that become resident when an allocator over 1 TiB is created: the mean of `n`
/// that exist at the same time. `None` if the system does not report resident bytes.
pub fn resident<C: Contender>(n: usize) -> Result<Option<u64>> {
    let space = Space { capacity: RESIDENT_POOL, max_live: MAX_LIVE };
    let mut all = Vec::with_capacity(n);
    let before = resident_bytes();
    for _ in 0..n {
        all.push(C::create(space)?);
    }
    let after = resident_bytes();
    let grown = before.zip(after).map(|(before, after)| after.saturating_sub(before) / n as u64);
    drop(all);
    Ok(grown)
}
