//! *Lower tier*: storage for what a cache evicts, made of disk tiers, of functions of the program,
//! and of each other.

use std::sync::Arc;

use kvmem::tier::{Chain, Tier};

use crate::argument::{Handle, Out, Owned};
use crate::call::guard;
use crate::disk_tier::kvmem_disk_tier;
use crate::promise::ObjectPromise;
use crate::status::kvmem_status;
use crate::table::object;

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

object!(kvmem_lower_tier, SharedLowerTier);

/// Makes a lower tier of a disk tier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_disk_tier_as_lower_tier(
    tier: Handle<kvmem_disk_tier>,
    out_lower_tier: Out<*mut kvmem_lower_tier>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let tier: SharedLowerTier = tier.get(&promise)?.clone();
        let made = out_lower_tier.get("out_lower_tier")?;
        made.insert(tier)
    })
}

/// Makes a chain: `upper` above `lower`. Both get each value that a cache above evicts, and both
/// are told of removals. A fetch asks `upper`, and `lower` for the rest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_chain(
    upper: Handle<kvmem_lower_tier>,
    lower: Handle<kvmem_lower_tier>,
    out_chain: Out<*mut kvmem_lower_tier>,
) -> kvmem_status {
    // SAFETY: promise 2 of the C caller.
    let promise = unsafe { ObjectPromise::of_caller() };
    guard(|| {
        let upper = Arc::clone(upper.get(&promise)?);
        let lower = Arc::clone(lower.get(&promise)?);
        let made = out_chain.get("out_chain")?;
        let chain: SharedLowerTier = Arc::new(Chain::new(upper, lower));
        made.insert(chain)
    })
}

/// Destroys a lower tier. What it was made of stays open until the caches and chains above it are
/// destroyed, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvmem_lower_tier_destroy(
    lower_tier: Owned<kvmem_lower_tier>,
) -> kvmem_status {
    lower_tier.destroy()
}
