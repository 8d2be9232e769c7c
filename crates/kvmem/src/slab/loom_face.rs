//! The layer without its threads' tables, for the model checks in `tests/loom` and `tests/shuttle`:
//! models know no statics.

use std::sync::Arc;

use crate::sync::{AtomicU32, Mutex, Ordering, fence};

use super::clock::ManualClock;
use super::core::MagazineCore;
use super::magazine_settings::MagazineSettings;
use super::owner_lock;
use super::source::RoundSource;
use super::thread_cache::CacheRef;
use super::topology::Topology;

/// Numbers below a limit, each of which is in or out.
struct ModelNumbers<const TRACKED: bool> {
    inside: Mutex<Vec<u32>>,
    /// Those from this one on may be cached.
    kept_from: AtomicU32,
}

impl<const TRACKED: bool> RoundSource<u32> for ModelNumbers<TRACKED> {
    const TRACKED: bool = TRACKED;

    fn keeps(&self, _: usize, round: &u32) -> bool {
        // Relaxed: changes between the owners' locks.
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

/// So many memory nodes. Which of them a cache is on is said when it is made.
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

/// One instance of one class, where nobody asks whether nothing is cached.
pub type MagazineModel = AnyMagazineModel<false>;
/// One where somebody does.
pub type TrackedModel = AnyMagazineModel<true>;

/// Either.
pub struct AnyMagazineModel<const TRACKED: bool> {
    core: MagazineCore<u32, ModelNumbers<TRACKED>>,
    clock: Arc<ManualClock>,
}

/// The cache of a thread.
pub struct ModelCache(CacheRef<u32>);

// SAFETY: the model's threads each use their own.
unsafe impl Send for ModelCache {}

impl<const TRACKED: bool> AnyMagazineModel<TRACKED> {
    /// Above a source of so many numbers, with magazines of so many rounds.
    pub fn new(numbers: u32, capacity: usize) -> Self {
        Self::bounded(numbers, capacity, None)
    }

    /// As above, with so many bytes in magazines at most: one for each round they have room for.
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

    /// As the first, on so many memory nodes.
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

    /// A cache for a thread.
    pub fn join(&self) -> ModelCache {
        ModelCache(self.core.join(std::ptr::null()).expect("there is memory"))
    }

    /// The same for a thread that stays on this node.
    pub fn join_on(&self, node: usize) -> ModelCache {
        let cache = self.join();
        cache.0.cache().node.set(node);
        cache.0.cache().node_visits_left.set(u32::MAX);
        cache
    }

    /// As `Magazines::get` and `get_cached`.
    pub fn get(&self, cache: Option<&ModelCache>, refill: bool) -> Option<u32> {
        // SAFETY: the cache has this class, and is the caller's.
        if let Some(round) = cache.and_then(|cache| unsafe { cache.0.get(0, TRACKED) }) {
            return Some(round);
        }
        self.core.get(cache.map(|cache| cache.0), 0, refill)
    }

    /// As `Magazines::put`.
    pub fn put(&self, cache: Option<&ModelCache>, round: u32) {
        // SAFETY: as in `get`.
        if cache.is_some_and(|cache| unsafe { cache.0.put(0, round, TRACKED) }) {
            return;
        }
        self.core.put(cache.map(|cache| cache.0), 0, round);
    }

    /// As a request that may only be refused if nothing is cached: see `extents::Instance::serve`.
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
        if nothing || last.is_some() { last } else { self.core.reap(attempt) }
    }

    /// Whether it can be seen at once that nobody else has magazines, the own ones are empty, and
    /// the source is.
    pub fn nothing_cached_fast(&self, cache: Option<&ModelCache>) -> bool {
        self.core.nothing_cached_fast(cache.map(|cache| cache.0), || 1, || self.inside() == 0)
    }

    /// As `Magazines::disable_caching`.
    pub fn disable_caching(&self) {
        self.core.disable_caching(|| ());
    }

    /// As `Magazines::rebind`: numbers from this one on are what may be cached.
    pub fn rebind(&self, kept_from: u32) {
        // Relaxed: see `keeps`.
        self.core.rebind(|core| core.source().kept_from.store(kept_from, Ordering::Relaxed));
    }

    /// What is cached.
    pub fn cached(&self) -> Vec<u32> {
        self.core.with_all_stopped(<[u32]>::to_vec)
    }

    /// As `Magazines::trim`.
    pub fn trim(&self) {
        self.core.trim();
    }

    /// As `Magazines::tick`, two intervals later.
    pub fn tick(&self) {
        for _ in 0..2 {
            self.clock.advance(std::time::Duration::from_secs(15));
            self.core.tick();
        }
    }

    /// As `Magazines::may_hold`.
    pub fn may_hold(&self) -> bool {
        self.core.may_hold()
    }

    /// The end of a thread.
    pub fn retire(&self, cache: ModelCache) {
        // SAFETY: it is of this instance, and gone now.
        unsafe { self.core.retire(cache.0) };
    }

    /// What is counted against the bound; 0 where there is none.
    pub fn charged_bytes(&self) -> u64 {
        self.core.stats().charged_bytes.unwrap_or(0)
    }

    /// How many numbers are with the source.
    pub fn inside(&self) -> usize {
        self.core.source().inside.lock().len()
    }
}

impl<const TRACKED: bool> Drop for AnyMagazineModel<TRACKED> {
    fn drop(&mut self) {
        self.core.close();
    }
}

/// The owner's lock.
pub struct OwnerModel {
    lock: owner_lock::OwnerLock,
    stoppers: Mutex<()>,
}

impl OwnerModel {
    /// That nobody has.
    #[allow(clippy::new_without_default)]
    pub fn new(fenced: bool) -> Self {
        OwnerModel { lock: owner_lock::OwnerLock::new(fenced), stoppers: Mutex::new(()) }
    }

    /// Runs with the lock, as the owner.
    pub fn enter(&self, run: impl FnOnce()) {
        let _guard = self.lock.try_enter().unwrap_or_else(|| self.lock.enter());
        run();
    }

    /// Runs with the lock, as another. `reached` as for a barrier on all threads; false if that is
    /// not so and the owner is not known to make fences.
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
            self.lock.resume();
        }
        settled
    }
}
