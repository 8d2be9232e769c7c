//! *Statistics of a slab allocator*.

use serde::Serialize;

use super::shared::Shared;
use crate::sync::Ordering;

/// The memory that a slab allocator holds. Read at about one moment while other threads may
/// continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlabStats {
    /// One entry per class, smallest size first.
    pub classes: Vec<SlabClassStats>,
    /// Bytes of mapped addresses: `slab_bytes`, `unused_bytes` and pages that were never touched.
    pub mapped_bytes: usize,
    /// Bytes in slabs.
    pub slab_bytes: usize,
    /// Bytes of freed slabs whose pages are not returned to the kernel yet.
    pub unused_bytes: usize,
    /// Bytes of free objects in magazines.
    pub cached_bytes: u64,
    /// Blocks in use that came from the system's allocator: those above the limit, or all with
    /// `always-malloc`.
    pub system_blocks: usize,
    /// Bytes of these blocks, as requested.
    pub system_bytes: usize,
}

/// The memory that a slab allocator holds for one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlabClassStats {
    /// Bytes per object: the class serves requests larger than the previous class's object, up to
    /// this size.
    pub object_bytes: usize,
    /// Bytes per slab.
    pub slab_bytes: usize,
    /// Objects per slab.
    pub slab_objects: usize,
    /// Number of places that the first object of a slab can have.
    pub colours: usize,
    /// Number of slabs.
    pub slabs: usize,
    /// Objects in use.
    pub in_use: usize,
    /// Free objects in magazines of threads or in the depot.
    pub cached: usize,
    /// Magazines exchanged between threads and depot.
    pub exchanges: u64,
    /// Times that objects came from another memory node because the thread's own node had none
    /// cached.
    pub remote: u64,
}

impl SlabStats {
    pub(crate) fn of(shared: &Shared) -> SlabStats {
        let slabs = shared.magazines.source();
        let pages = slabs.pages().stats();
        let magazines = shared.magazines.stats();
        let classes = slabs.counts().zip(&magazines.classes).map(|(count, class)| SlabClassStats {
            object_bytes: count.geometry.size,
            slab_bytes: count.geometry.slab_bytes,
            slab_objects: count.geometry.objects,
            colours: count.geometry.colours(),
            slabs: count.slabs,
            // The two are read at different moments.
            in_use: count.live.saturating_sub(class.in_threads + class.in_depot),
            cached: class.in_threads + class.in_depot,
            exchanges: class.exchanges,
            remote: class.remote,
        });
        SlabStats {
            classes: classes.collect(),
            mapped_bytes: pages.mapped,
            slab_bytes: pages.slabs,
            unused_bytes: pages.dirty,
            cached_bytes: magazines.cached_bytes,
            // Relaxed: statistics.
            system_blocks: shared.system_blocks.load(Ordering::Relaxed),
            system_bytes: shared.system_bytes.load(Ordering::Relaxed),
        }
    }
}
