//! *State* of one instance: its source, its depots, the caches of all threads, and the counters.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::super::clock::Clock;
use super::super::depot::Depot;
use super::super::holders::Holders;
use super::super::settings::{MagazineSettings, capacity_bounds};
use super::super::source::RoundSource;
use super::super::thread_cache::{CacheAccess, CacheList, Caches, OwnCache, ThreadCache};
use super::super::topology::Topology;
use super::bound::CacheBound;
use super::bypass::Bypass;
use super::moves::Moves;
use super::transfers::Transfers;
use crate::sync::{AtomicU64, Mutex};

/// A thread looks up its memory node once every this many visits to the depot.
const VISITS_PER_NODE_LOOKUP: u32 = 16;

/// One instance of the magazine layer.
pub(crate) struct MagazineCore<R: Copy + Send + 'static, S: RoundSource<R>> {
    pub(super) source: S,
    pub(super) depots: Box<[Depot<R>]>,
    pub(super) caches: Mutex<Caches<R>>,
    /// The list in `caches`, for statistics, which do not take the lock.
    pub(super) list: Arc<CacheList<R>>,
    pub(super) trims: Mutex<Trims>,
    pub(super) holders: Holders,
    pub(super) moves: Moves,
    pub(super) bypass: Bypass,
    pub(super) transfers: Transfers,
    pub(super) bound: CacheBound,
    /// The most bytes of a magazine that the share of a thread allows, now and when all magazines
    /// were last taken. Unlimited without a bound.
    pub(super) level: AtomicU64,
    pub(super) level_at_trim: AtomicU64,
    /// The most full magazines that a depot keeps for each class and memory node.
    pub(super) max_full_magazines: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) working_set: Duration,
    topology: Arc<dyn Topology>,
    /// The number of memory nodes that `topology` reports.
    nodes: usize,
}

/// The state under the lock that serializes trims.
pub(super) struct Trims {
    pub(super) last_tick: Duration,
}

// SAFETY: everything shared is atomic or under a lock, and the rounds are `Send`. The blocks behind
// `list` are used as described in `thread_cache/block.rs`.
unsafe impl<R: Copy + Send + 'static, S: RoundSource<R>> Sync for MagazineCore<R, S> {}

impl<R: Copy + Send + 'static, S: RoundSource<R>> MagazineCore<R, S> {
    pub(crate) fn new(source: S, settings: MagazineSettings) -> Self {
        let nodes = settings.topology.nodes().max(1);
        let depots = (0..settings.classes).map(|class| {
            let bytes = source.round_bytes(class);
            let bounds = capacity_bounds(settings.magazine_bytes, size_of::<R>(), bytes);
            Depot::new(class, bounds, bytes, nodes)
        });
        let caches = Caches::new();
        MagazineCore {
            depots: depots.collect(),
            source,
            list: caches.list(),
            caches: Mutex::new(caches),
            trims: Mutex::new(Trims { last_tick: settings.clock.now() }),
            holders: Holders::new(),
            moves: Moves::new(),
            bypass: Bypass::new(),
            transfers: Transfers::new(),
            bound: CacheBound::new(settings.max_cached_bytes),
            level: AtomicU64::new(u64::MAX),
            level_at_trim: AtomicU64::new(u64::MAX),
            max_full_magazines: settings.max_full_magazines,
            clock: settings.clock,
            working_set: settings.working_set,
            topology: settings.topology,
            nodes,
        }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    pub(crate) fn classes(&self) -> usize {
        self.depots.len()
    }

    pub(crate) fn bound(&self) -> &CacheBound {
        &self.bound
    }

    /// Returns false only if no cache holds a round, as far as this thread can know. One load.
    pub(crate) fn may_hold(&self) -> bool {
        self.holders.count() != 0
    }

    /// Makes a cache for a thread; `None` if the system has no memory. The cache lives until
    /// [`retire`](Self::retire) or until the instance ends.
    pub(crate) fn join(&self, thread: *const ()) -> Option<NonNull<ThreadCache<R>>> {
        let mut caches = self.caches.lock();
        let cache = caches.add(self.classes(), thread);
        self.share_bound(&caches);
        cache
    }

    /// Ends a cache: moves its magazines to the depot and frees its memory.
    ///
    /// # Safety
    ///
    /// The cache belongs to this instance and is not used again.
    pub(crate) unsafe fn retire(&self, own: OwnCache<'_, R>) {
        let _move = self.moves.begin(S::TRACKED);
        let mut caches = self.caches.lock();
        {
            // SAFETY: this thread is the owner, or has taken its place, and is outside of the
            // owner's lock. No thread stops it while this one holds the lock of the list.
            let access = unsafe { CacheAccess::new(own.shared()) };
            let node = own.node();
            for (slot, depot) in access.classes().zip(&self.depots) {
                for magazine in [slot.loaded.take(), slot.previous.take()].into_iter().flatten() {
                    if magazine.count() > 0 {
                        depot.give_full(node, magazine, &self.holders);
                    } else {
                        self.bound.uncharge(magazine.charge());
                        depot.give_empty(node, magazine);
                    }
                }
            }
            if access.set_has_magazines(false) {
                self.holders.remove(1);
            }
        }
        // SAFETY: the cache is in the list, because it belongs to this instance and was not retired
        // before. The caller promises that it is not used again.
        let retired = unsafe { caches.remove(own.as_ptr()) };
        self.share_bound(&caches);
        drop(caches);
        drop(retired);
    }

    /// Returns the memory node that the calling thread runs on.
    pub(super) fn current_node(&self) -> usize {
        if self.nodes == 1 { 0 } else { self.topology.here().min(self.nodes - 1) }
    }

    /// Returns the memory node of the owner's thread, looked up once every
    /// [`VISITS_PER_NODE_LOOKUP`] calls. Called before the owner's lock is taken.
    pub(super) fn node(&self, own: &mut OwnCache<'_, R>) -> usize {
        if self.nodes == 1 {
            return 0;
        }
        own.node_or(VISITS_PER_NODE_LOOKUP, || self.current_node())
    }
}
