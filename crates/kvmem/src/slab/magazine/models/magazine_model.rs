//! *Magazine model*: the core of the magazines above a source of numbers.
//!
//! A model's threads have their caches in hand, because the tables of threads are statics.

use std::ptr::NonNull;
use std::sync::Arc;

use super::super::clock::ManualClock;
use super::super::core::MagazineCore;
use super::super::settings::MagazineSettings;
use super::super::source::RoundSource;
use super::super::thread_cache::{OwnCache, ThreadCache};
use super::super::topology::Topology;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// A source of the numbers below a limit.
struct ModelNumbers<const TRACKED: bool> {
    inside: Mutex<Vec<u32>>,
    /// Numbers from this one on may be cached.
    kept_from: AtomicU32,
}

impl<const TRACKED: bool> RoundSource<u32> for ModelNumbers<TRACKED> {
    const TRACKED: bool = TRACKED;

    fn keeps(&self, _: usize, round: &u32) -> bool {
        // Relaxed: changes only while all owners are stopped.
        *round >= self.kept_from.load(Ordering::Relaxed)
    }

    fn refill(&self, _: usize, want: usize, out: &mut Vec<u32>) {
        let mut inside = self.inside.lock();
        let from = inside.len().saturating_sub(want);
        out.extend(inside.drain(from..));
    }

    fn drain(&self, _: usize, rounds: &mut Vec<u32>) {
        let mut inside = self.inside.lock();
        for round in rounds.drain(..) {
            assert!(!inside.contains(&round), "{round} came back twice");
            inside.push(round);
        }
    }

    fn round_bytes(&self, _: usize) -> usize {
        1
    }
}

/// A number of memory nodes. The node of a cache is set when the cache is made.
#[derive(Debug)]
struct ModelNodes(usize);

impl Topology for ModelNodes {
    fn nodes(&self) -> usize {
        self.0
    }

    fn here(&self) -> usize {
        0
    }
}

/// An instance of one class whose moves are not tracked.
pub(super) type MagazineModel = AnyMagazineModel<false>;
/// An instance of one class whose moves are tracked, so it knows whether anything is cached.
pub(super) type TrackedModel = AnyMagazineModel<true>;

/// An instance of one class, tracked or not.
pub(super) struct AnyMagazineModel<const TRACKED: bool> {
    core: MagazineCore<u32, ModelNumbers<TRACKED>>,
    clock: Arc<ManualClock>,
}

/// The cache of a thread.
pub(super) struct ModelCache(NonNull<ThreadCache<u32>>);

impl ModelCache {
    fn own(&self) -> OwnCache<'_, u32> {
        // SAFETY: the cache lives until `retire`, and each thread of a model uses its own.
        unsafe { OwnCache::from_raw(self.0.as_ptr().cast()) }.expect("not null")
    }
}

// SAFETY: each thread of a model uses its own cache.
unsafe impl Send for ModelCache {}

impl<const TRACKED: bool> AnyMagazineModel<TRACKED> {
    /// Makes an instance above a source of `numbers` numbers, with magazines of `capacity` rounds.
    pub(super) fn new(numbers: u32, capacity: usize) -> Self {
        Self::bounded(numbers, capacity, None)
    }

    /// Makes such an instance whose magazines have room for at most `max_cached_bytes` rounds
    /// together; each round counts as one byte.
    pub(super) fn bounded(numbers: u32, capacity: usize, max_cached_bytes: Option<u64>) -> Self {
        Self::with(
            numbers,
            MagazineSettings {
                magazine_bytes: 4 * capacity,
                max_cached_bytes,
                ..MagazineSettings::new(1)
            },
        )
    }

    /// Makes such an instance on `nodes` memory nodes.
    pub(super) fn on_nodes(numbers: u32, capacity: usize, nodes: usize) -> Self {
        let topology = Arc::new(ModelNodes(nodes));
        Self::with(
            numbers,
            MagazineSettings { magazine_bytes: 4 * capacity, topology, ..MagazineSettings::new(1) },
        )
    }

    fn with(numbers: u32, settings: MagazineSettings) -> Self {
        let clock = Arc::new(ManualClock::default());
        let settings = MagazineSettings { clock: clock.clone(), ..settings };
        let numbers = ModelNumbers {
            inside: Mutex::new((0..numbers).collect()),
            kept_from: AtomicU32::new(0),
        };
        AnyMagazineModel { core: MagazineCore::new(numbers, settings), clock }
    }

    /// Makes a cache for a thread.
    pub(super) fn join(&self) -> ModelCache {
        ModelCache(self.core.join(std::ptr::null()).expect("there is memory"))
    }

    /// Makes a cache for a thread that stays on this node.
    pub(super) fn join_on(&self, node: usize) -> ModelCache {
        let cache = self.join();
        cache.own().set_node(node, u32::MAX);
        cache
    }

    /// Models `Magazines::get` and `get_cached`.
    pub(super) fn get(&self, cache: Option<&ModelCache>, refill: bool) -> Option<u32> {
        // SAFETY: the cache has this class, and is the caller's.
        if let Some(round) = cache.and_then(|cache| unsafe { cache.own().get(0, TRACKED) }) {
            return Some(round);
        }
        self.core.get(cache.map(ModelCache::own).as_mut(), 0, refill)
    }

    /// Models `Magazines::put`.
    pub(super) fn put(&self, cache: Option<&ModelCache>, round: u32) {
        // SAFETY: the cache has this class, and is the caller's.
        if cache.is_some_and(|cache| unsafe { cache.own().put(0, round, TRACKED) }) {
            return;
        }
        self.core.put(cache.map(ModelCache::own).as_mut(), 0, round);
    }

    /// Makes a request that may fail only if nothing is cached.
    pub(super) fn request(&self, cache: Option<&ModelCache>) -> Option<u32> {
        let attempt = || self.core.source().refill_one(0).ok_or(());
        self.get(cache, true)
            .map_or_else(attempt, Ok)
            .or_else(|error| self.core.retry(error, || 1, attempt))
            .ok()
    }

    /// Returns whether one load shows that no other thread has magazines, the caller's are empty,
    /// and the source is empty.
    pub(super) fn nothing_cached_fast(&self, cache: Option<&ModelCache>) -> bool {
        let own = cache.map(|cache| cache.own().shared());
        self.core.nothing_cached_fast(own, || 1, || self.inside() == 0)
    }

    /// Models `Magazines::disable_caching`.
    pub(super) fn disable_caching(&self) {
        self.core.disable_caching(|_| ());
    }

    /// Models `Magazines::rebind`: numbers from `kept_from` on may be cached afterwards.
    pub(super) fn rebind(&self, kept_from: u32) {
        // Relaxed: see `keeps`.
        self.core.rebind(|core| core.source().kept_from.store(kept_from, Ordering::Relaxed));
    }

    /// Returns the cached numbers.
    pub(super) fn cached(&self) -> Vec<u32> {
        self.core.with_all_stopped(<[u32]>::to_vec)
    }

    /// Models `Magazines::trim`.
    pub(super) fn trim(&self) {
        self.core.trim();
    }

    /// Models `Magazines::tick` after two intervals.
    pub(super) fn tick(&self) {
        for _ in 0..2 {
            self.clock.advance(std::time::Duration::from_secs(15));
            self.core.tick();
        }
    }

    /// Models `Magazines::may_hold`.
    pub(super) fn may_hold(&self) -> bool {
        self.core.may_hold()
    }

    /// Ends a thread.
    pub(super) fn retire(&self, cache: ModelCache) {
        // SAFETY: the cache belongs to this instance and is not used again.
        unsafe { self.core.retire(cache.own()) };
    }

    /// Returns the bytes charged against the bound; 0 if there is none.
    #[cfg(shuttle)]
    pub(super) fn charged_bytes(&self) -> u64 {
        self.core.stats().charged_bytes.unwrap_or(0)
    }

    /// Returns the number of numbers in the source.
    pub(super) fn inside(&self) -> usize {
        self.core.source().inside.lock().len()
    }
}

impl<const TRACKED: bool> Drop for AnyMagazineModel<TRACKED> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` shows that no thread uses the instance.
        unsafe { self.core.close() };
    }
}
