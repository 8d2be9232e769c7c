//! *Lower tier*: storage for what a cache evicts, made of disk tiers, of functions of the program,
//! and of each other.

use std::sync::Arc;

use kvmem::tier::{Chain, Tier};

use crate::call::{destroy, guard, out};
use crate::disk_tier::kvmem_disk_tier;
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::{Object, object};
use crate::tier_set::kvmem_tier_set;

/// Storage for what a cache evicts: a disk tier, a set of them, functions of the program
/// (kvmem_lower_tier_custom), or a chain of two lower tiers. See `lower_tier` of
/// kvmem_kv_cache_options. It keeps what it was made of. Owned by the caller:
/// kvmem_lower_tier_destroy. Any thread. In a forked child every call returns KVMEM_ERR_FORKED,
/// except kvmem_lower_tier_destroy.
pub struct kvmem_lower_tier {
    _opaque: [u8; 0],
}

/// A lower tier, shared with the caches and chains above it.
pub(crate) type SharedLowerTier = Arc<dyn Tier>;

object!(kvmem_lower_tier, SharedLowerTier, LowerTier);

/// Makes a lower tier of a disk tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_as_lower_tier(
    tier: *const kvmem_disk_tier,
    out_lower_tier: *mut *mut kvmem_lower_tier,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let tier: SharedLowerTier = kvmem_disk_tier::table().get(&promise, tier)?.clone();
        // SAFETY: promise 1 of the C caller, for `out_lower_tier`.
        let made = unsafe { out(out_lower_tier, "out_lower_tier") }?;
        made.put(kvmem_lower_tier::table().insert(tier)?);
        Ok(())
    })
}

/// Makes a lower tier of a set of tiers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_tier_set_as_lower_tier(
    set: *const kvmem_tier_set,
    out_lower_tier: *mut *mut kvmem_lower_tier,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let set: SharedLowerTier = kvmem_tier_set::table().get(&promise, set)?.clone();
        // SAFETY: promise 1 of the C caller, for `out_lower_tier`.
        let made = unsafe { out(out_lower_tier, "out_lower_tier") }?;
        made.put(kvmem_lower_tier::table().insert(set)?);
        Ok(())
    })
}

/// Makes a chain: `upper` above `lower`. Both get each value that a cache above evicts, and both
/// are told of removals. A fetch asks `upper`, and `lower` for the rest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_chain(
    upper: *const kvmem_lower_tier,
    lower: *const kvmem_lower_tier,
    out_chain: *mut *mut kvmem_lower_tier,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let upper = Arc::clone(kvmem_lower_tier::table().get(&promise, upper)?);
        let lower = Arc::clone(kvmem_lower_tier::table().get(&promise, lower)?);
        // SAFETY: promise 1 of the C caller, for `out_chain`.
        let made = unsafe { out(out_chain, "out_chain") }?;
        let chain: SharedLowerTier = Arc::new(Chain::new(upper, lower));
        made.put(kvmem_lower_tier::table().insert(chain)?);
        Ok(())
    })
}

/// Destroys a lower tier. What it was made of stays open until the caches and chains above it are
/// destroyed, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_destroy(
    lower_tier: *mut kvmem_lower_tier,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let mut promise = unsafe { ObjectPromise::of_caller() };
    destroy(&mut promise, lower_tier)
}
