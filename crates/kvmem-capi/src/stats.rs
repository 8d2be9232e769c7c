//! *Statistics*: the structures of C for the library's tables of statistics. A structure has a
//! `uint64_t` for each number of its table, in order, and one that is 0 or 1 for each flag.
//!
//! cbindgen does not see them, since the names of their members come from the tables: the test that
//! writes `kvmem.h` passes it the same structures as text.

use std::ffi::{c_char, c_void};

use kvmem::arena::BumpStats;
use kvmem::cache::KvCacheStats;
use kvmem::offset::Metrics;
use kvmem::pool::observe::Stats;
use kvmem::tier::WriteBehindStats;
use kvmem_node::{NamespaceStats, NodeStats};
use kvmem_tier::{DiskTierInspection, OpenReport, TierStats};

/// Returns how many members the structure has.
const fn members<S: Stats>() -> usize {
    let (mut count, mut index) = (0, 0);
    while index < S::FIELDS.len() {
        count += S::FIELDS[index].is_number as usize;
        index += 1;
    }
    count
}

/// Returns the members.
fn numbers<S: Stats, const N: usize>(stats: &S) -> [u64; N] {
    let mut numbers = S::FIELDS.iter().filter(|field| field.is_number);
    std::array::from_fn(|_| numbers.next().map_or(0, |field| (field.value)(stats)))
}

macro_rules! structures {
    ($($(#[$about:meta])* $name:ident of $stats:ident $(and $more:ident: $type:ty)?;)*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name([u64; members::<$stats>()] $(, $type)?);

            impl $name {
                pub(crate) fn new(stats: &$stats $(, $more: $type)?) -> Self {
                    $name(numbers(stats) $(, $more)?)
                }
            }
        )*
    };
}

structures! {
    /// Statistics of a cache.
    kvmem_kv_cache_stats of KvCacheStats;
    /// Statistics of the queue of evicted values.
    kvmem_write_behind_stats of WriteBehindStats;
    /// Statistics of a disk tier, or the sums of those of a set.
    kvmem_disk_tier_stats of TierStats;
    /// Statistics of a node.
    kvmem_node_stats of NodeStats;
    /// Statistics of a namespace of a node.
    kvmem_node_namespace_stats of NamespaceStats and namespace_name: [c_char; 64];
    /// What opening a disk tier found.
    kvmem_disk_tier_report of OpenReport;
    /// Contents of the file of a disk tier.
    kvmem_disk_tier_inspection of DiskTierInspection and identity: [u8; 16];
    /// Figures of a space or pool.
    kvmem_metrics of Metrics and boundary_bytes: u64;
    /// Bytes that an arena has allocated.
    kvmem_bump_arena_stats of BumpStats and data: *mut c_void;
}
