//! The magazine layer without its thread-local tables, for the model checks in `tests/loom` and
//! `tests/shuttle`. The model checkers do not support statics.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicU32, Mutex, Ordering, fence};

use super::magazine::{
    MagazineCore, MagazineSettings, ManualClock, OwnCache, OwnerLock, RoundSource, ThreadCache,
    Topology,
};

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
pub type MagazineModel = AnyMagazineModel<false>;
/// An instance of one class whose moves are tracked, so it can tell whether anything is cached.
pub type TrackedModel = AnyMagazineModel<true>;

/// An instance of one class, tracked or not.
pub struct AnyMagazineModel<const TRACKED: bool> {
    core: MagazineCore<u32, ModelNumbers<TRACKED>>,
    clock: Arc<ManualClock>,
}

/// The cache of a thread.
pub struct ModelCache(NonNull<ThreadCache<u32>>);

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
    pub fn new(numbers: u32, capacity: usize) -> Self {
        Self::bounded(numbers, capacity, None)
    }

    /// Makes such an instance whose magazines have room for at most `max_cached_bytes` rounds
    /// together; each round counts as one byte.
    pub fn bounded(numbers: u32, capacity: usize, max_cached_bytes: Option<u64>) -> Self {
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
    pub fn on_nodes(numbers: u32, capacity: usize, nodes: usize) -> Self {
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
    pub fn join(&self) -> ModelCache {
        ModelCache(self.core.join(std::ptr::null()).expect("there is memory"))
    }

    /// Makes a cache for a thread that stays on this node.
    pub fn join_on(&self, node: usize) -> ModelCache {
        let cache = self.join();
        cache.own().set_node(node, u32::MAX);
        cache
    }

    /// Models `Magazines::get` and `get_cached`.
    pub fn get(&self, cache: Option<&ModelCache>, refill: bool) -> Option<u32> {
        // SAFETY: the cache has this class, and is the caller's.
        if let Some(round) = cache.and_then(|cache| unsafe { cache.own().get(0, TRACKED) }) {
            return Some(round);
        }
        self.core.get(cache.map(ModelCache::own).as_mut(), 0, refill)
    }

    /// Models `Magazines::put`.
    pub fn put(&self, cache: Option<&ModelCache>, round: u32) {
        // SAFETY: the cache has this class, and is the caller's.
        if cache.is_some_and(|cache| unsafe { cache.own().put(0, round, TRACKED) }) {
            return;
        }
        self.core.put(cache.map(ModelCache::own).as_mut(), 0, round);
    }

    /// Models a request that may fail only if nothing is cached: see
    /// `ExtentInstance::with_reclaim`.
    pub fn request(&self, cache: Option<&ModelCache>) -> Option<u32> {
        let attempt = || self.core.source().refill_one(0);
        if let Some(round) = self.get(cache, true).or_else(attempt) {
            return Some(round);
        }
        let mut last = None;
        let nothing = self.core.nothing_cached(
            || 1,
            || {
                last = attempt();
                last.is_none()
            },
        );
        if nothing || last.is_some() { last } else { self.core.reclaim(attempt) }
    }

    /// Returns whether one load shows that no other thread has magazines, the caller's are empty,
    /// and the source is empty.
    pub fn nothing_cached_fast(&self, cache: Option<&ModelCache>) -> bool {
        let own = cache.map(|cache| cache.own().shared());
        self.core.nothing_cached_fast(own, || 1, || self.inside() == 0)
    }

    /// Models `Magazines::disable_caching`.
    pub fn disable_caching(&self) {
        self.core.disable_caching(|| ());
    }

    /// Models `Magazines::rebind`: numbers from `kept_from` on may be cached afterwards.
    pub fn rebind(&self, kept_from: u32) {
        // Relaxed: see `keeps`.
        self.core.rebind(|core| core.source().kept_from.store(kept_from, Ordering::Relaxed));
    }

    /// Returns the cached numbers.
    pub fn cached(&self) -> Vec<u32> {
        self.core.with_all_stopped(<[u32]>::to_vec)
    }

    /// Models `Magazines::trim`.
    pub fn trim(&self) {
        self.core.trim();
    }

    /// Models `Magazines::tick` after two intervals.
    pub fn tick(&self) {
        for _ in 0..2 {
            self.clock.advance(std::time::Duration::from_secs(15));
            self.core.tick();
        }
    }

    /// Models `Magazines::may_hold`.
    pub fn may_hold(&self) -> bool {
        self.core.may_hold()
    }

    /// Ends a thread.
    pub fn retire(&self, cache: ModelCache) {
        // SAFETY: the cache belongs to this instance and is not used again.
        unsafe { self.core.retire(cache.own()) };
    }

    /// Returns the bytes charged against the bound; 0 if there is none.
    pub fn charged_bytes(&self) -> u64 {
        self.core.stats().charged_bytes.unwrap_or(0)
    }

    /// Returns the number of numbers in the source.
    pub fn inside(&self) -> usize {
        self.core.source().inside.lock().len()
    }
}

impl<const TRACKED: bool> Drop for AnyMagazineModel<TRACKED> {
    fn drop(&mut self) {
        // SAFETY: `&mut self` shows that no thread uses the instance.
        unsafe { self.core.close() };
    }
}

/// The owner lock.
pub struct OwnerModel {
    lock: OwnerLock,
    stoppers: Mutex<()>,
}

impl OwnerModel {
    /// Makes a free lock.
    #[allow(clippy::new_without_default)]
    pub fn new(fenced: bool) -> Self {
        OwnerModel { lock: OwnerLock::new(fenced), stoppers: Mutex::new(()) }
    }

    /// Runs `run` with the lock, as the owner.
    pub fn enter(&self, run: impl FnOnce()) {
        // SAFETY: one thread of a model is the owner, and `run` does not enter.
        let _guard = unsafe { self.lock.try_enter().unwrap_or_else(|| self.lock.enter()) };
        run();
    }

    /// Runs `run` with the lock, as a stopper. `reached` tells whether the barrier runs on all
    /// threads. Returns false without running it if that is not so and the owner is not known to
    /// make fences.
    pub fn stop(&self, reached: bool, run: impl FnOnce()) -> bool {
        let _stoppers = self.stoppers.lock();
        self.lock.stop();
        if !reached {
            self.lock.make_fenced();
        }
        fence(Ordering::SeqCst);
        let settled = self.lock.wait_until_out(reached);
        if settled {
            run();
            // SAFETY: this thread has stopped the owner, and `run` is done.
            unsafe { self.lock.resume() };
        }
        settled
    }
}
