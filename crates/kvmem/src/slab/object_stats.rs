//! *Object statistics*: what a cache of objects holds.

use serde::Serialize;

use super::class::Geometry;
use super::magazine_stats::MagazineStats;
use super::page_source::PageStats;
use super::slabs::Slabs;

/// What a cache of objects holds, at about one moment: other threads go on meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectStats {
    /// Bytes that an object takes, with what aligns it.
    pub object_bytes: usize,
    /// Objects of a slab; 0 where objects are the system's, being larger than 32,752 bytes or
    /// aligned to more than 64.
    pub slab_objects: usize,
    /// Slabs that there are.
    pub slabs: usize,
    /// Bytes in slabs.
    pub slab_bytes: usize,
    /// Bytes of addresses: `slab_bytes`, `unused_bytes` and what was never touched.
    pub mapped_bytes: usize,
    /// Bytes of slabs that are gone and whose pages have not been given back yet.
    pub unused_bytes: usize,
    /// Objects in use.
    pub in_use: usize,
    /// Constructed objects that nobody uses, in magazines: of threads, or in the depot.
    pub cached: usize,
    /// Their bytes: `object_bytes` each. What the values own beside is not counted.
    pub cached_bytes: u64,
    /// How often the constructor has made one since the cache is there.
    pub constructed: u64,
    /// Magazines that went between threads and depot.
    pub exchanges: u64,
    /// How often objects came from another memory node, since none were cached on the thread's
    /// own.
    pub remote: u64,
}

impl ObjectStats {
    /// Of a cache whose objects are in slabs, or of that many bytes, and so many, of the system.
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
            // The two are of two moments.
            in_use: live.saturating_sub(cached),
            cached,
            cached_bytes: magazines.cached_bytes,
            constructed,
            exchanges: class.exchanges,
            remote: class.remote,
        }
    }
}
