//! *Statistics of an object cache*.

use serde::Serialize;

use crate::slab::magazine::MagazineStats;
use crate::slab::slabs::Geometry;
use crate::slab::slabs::PageStats;
use crate::slab::slabs::Slabs;

/// The objects that an object cache holds. Read at about one moment while other threads may
/// continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectStats {
    /// Bytes per object, including padding for alignment.
    pub object_bytes: usize,
    /// Objects per slab. 0 if the objects come from the system's allocator, because they are
    /// larger than 32,752 bytes or aligned to more than 64.
    pub slab_objects: usize,
    /// Number of slabs.
    pub slabs: usize,
    /// Bytes in slabs.
    pub slab_bytes: usize,
    /// Bytes of mapped addresses: `slab_bytes`, `unused_bytes` and pages that were never touched.
    pub mapped_bytes: usize,
    /// Bytes of freed slabs whose pages are not returned to the kernel yet.
    pub unused_bytes: usize,
    /// Objects in use.
    pub in_use: usize,
    /// Constructed objects that are free and in magazines of threads or in the depot.
    pub cached: usize,
    /// Bytes of these objects, `object_bytes` each. Memory that the values own themselves is not
    /// counted.
    pub cached_bytes: u64,
    /// Calls of the constructor so far.
    pub constructed: u64,
    /// Magazines exchanged between threads and depot.
    pub exchanges: u64,
    /// Times that objects came from another memory node because the thread's own node had none
    /// cached.
    pub remote: u64,
}

impl ObjectStats {
    /// Collects the statistics of a cache. `memory` is its slabs, or the size and the number of
    /// objects that came from the system's allocator.
    pub(crate) fn of(
        memory: Result<&Slabs, (usize, usize)>,
        magazines: &MagazineStats,
        constructed: u64,
    ) -> ObjectStats {
        let class = magazines.classes.first().copied().unwrap_or_default();
        let cached = class.in_threads + class.in_depot;
        let (object_bytes, slab_objects, slabs, live, pages) = match memory {
            Ok(of) => {
                let Geometry { size, objects, .. } = *of.geometry(0);
                let (slabs, live) = of
                    .counts()
                    .fold((0, 0), |(slabs, live), class| (slabs + class.slabs, live + class.live));
                (size, objects, slabs, live, of.pages().stats())
            }
            Err((bytes, live)) => (bytes, 0, 0, live, PageStats::default()),
        };
        ObjectStats {
            object_bytes,
            slab_objects,
            slabs,
            slab_bytes: pages.slabs,
            mapped_bytes: pages.mapped,
            unused_bytes: pages.dirty,
            // The two are read at different moments.
            in_use: live.saturating_sub(cached),
            cached,
            cached_bytes: magazines.cached_bytes,
            constructed,
            exchanges: class.exchanges,
            remote: class.remote,
        }
    }
}
