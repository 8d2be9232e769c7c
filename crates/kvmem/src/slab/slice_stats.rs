//! *Slice statistics*: what an allocator holds.

use serde::Serialize;

use super::slice::Shared;
use crate::sync::Ordering;

/// What an allocator of blocks holds, at about one moment: other threads go on meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlabStats {
    /// By size, smallest first.
    pub classes: Vec<SlabClassStats>,
    /// Bytes of addresses: `slab_bytes`, `unused_bytes` and what was never touched.
    pub mapped_bytes: usize,
    /// Bytes in slabs.
    pub slab_bytes: usize,
    /// Bytes of slabs that are gone and whose pages have not been given back yet.
    pub unused_bytes: usize,
    /// Bytes of objects that are free and in a magazine.
    pub cached_bytes: u64,
    /// Blocks of the system's allocator that are in use: above the limit, or all of them with
    /// `always-malloc`.
    pub system_blocks: usize,
    /// Their bytes, as they were asked for.
    pub system_bytes: usize,
}

/// What an allocator holds of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlabClassStats {
    /// Bytes of an object: requests of more than the class before, up to this.
    pub object_bytes: usize,
    /// Bytes of a slab.
    pub slab_bytes: usize,
    /// Objects of a slab.
    pub slab_objects: usize,
    /// Places that the first object of a slab may have.
    pub colours: usize,
    /// Slabs that there are.
    pub slabs: usize,
    /// Objects in use.
    pub in_use: usize,
    /// Objects that are free and in a magazine: of a thread, or in the depot.
    pub cached: usize,
    /// Magazines that went between threads and depot.
    pub exchanges: u64,
    /// How often objects came from another memory node, since none were cached on the thread's
    /// own.
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
            // The two are of two moments.
            in_use: count.out.saturating_sub(class.in_threads + class.in_depot),
            cached: class.in_threads + class.in_depot,
            exchanges: class.exchanges,
            remote: class.remote,
        });
        SlabStats {
            classes: classes.collect(),
            mapped_bytes: pages.mapped,
            slab_bytes: pages.slabs,
            unused_bytes: pages.dirty,
            cached_bytes: magazines.stranded_bytes,
            // Relaxed: only counted.
            system_blocks: shared.system_blocks.load(Ordering::Relaxed),
            system_bytes: shared.system_bytes.load(Ordering::Relaxed),
        }
    }
}
