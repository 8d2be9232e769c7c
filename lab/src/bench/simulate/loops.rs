//! One loop on a number of cores.

use std::cell::{Cell, RefCell};
use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use kvmem::cache::{Eviction, KvCache};
use kvmem::pool::Pool;
use kvmem_testkit::cores::{self, CoreCosts, WaitPlace};

use crate::bench::arena::bump::{ALIGN, Bump, KvmemArena};
use crate::bench::cache::{KEYS, VALUE_BYTES};
use crate::bench::concurrency::ConcurrencyScenario;
use crate::bench::concurrency::scenario::ScenarioState;
use crate::bench::contender::Contender;

/// The cores, and how long the loops run on them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) costs: CoreCosts,
    pub(super) cores: u32,
    /// Virtual nanoseconds.
    pub(super) time: u64,
    /// Calls of all threads after which the loop ends earlier.
    pub(super) calls: u64,
    /// Where the cores waited in the last loop, for each call, if that is to be recorded.
    pub(super) waits: Option<&'a RefCell<Vec<WaitPlace>>>,
}

impl Setting<'_> {
    /// Runs a step on each core, first `warm` times and then for the time; returns the million
    /// calls a second of all cores. `thread` makes the step of each thread, which returns its
    /// calls.
    fn rate<F: FnMut() -> Result<u64>>(
        &self,
        warm: Warm,
        thread: impl Fn(usize) -> F,
    ) -> Result<f64> {
        let rates = vec![Cell::new(0.0); self.cores as usize];
        let failure = Cell::new(None);
        let body = |index: usize| {
            let mut step = thread(index);
            let mut counted = || {
                step().unwrap_or_else(|error| {
                    failure.set(Some(error));
                    0
                })
            };
            for _ in 0..warm.steps {
                counted();
                if cores::now() > warm.time {
                    break;
                }
            }
            cores::meet();
            let start = cores::now();
            let mut calls = 0;
            while cores::now() - start < self.time {
                let more = counted();
                calls += more;
                if cores::count(more) >= self.calls {
                    break;
                }
            }
            let took = (cores::now() - start).max(1);
            rates[index].set(calls as f64 * 1e3 / took as f64);
            cores::meet();
            // The thread frees its blocks without advancing the clock.
            cores::stop_counting();
        };
        let body = &body;
        let thread = |index| Box::new(move || body(index)) as Box<dyn FnOnce()>;
        let called = cores::run(&self.costs, (0..self.cores as usize).map(thread).collect());
        if let Some(all) = self.waits {
            all.replace(cores::take_waits(called));
        }
        failure.take().map_or(Ok(rates.iter().map(Cell::get).sum()), Err)
    }

    /// Runs a scenario of `concurrency`; `own` is the time of a step's own work in picoseconds.
    pub(super) fn scenario<C: Contender<Handle: Send> + Sync>(
        &self,
        scenario: ConcurrencyScenario,
        own: u64,
    ) -> Result<f64> {
        cores::set_processors(self.cores as usize);
        let scene = ScenarioState::<C>::new(scenario, self.cores)?;
        use ConcurrencyScenario::{Fragmented, HighWater};
        let is_cut = matches!(scenario, Fragmented | HighWater);
        self.rate(if is_cut { WARM_TO_CUT } else { WARM_TO_JOIN }, |index| {
            let mut worker = scene.worker(index);
            move || {
                cores::work(own);
                let calls = worker.step(&mut ());
                worker.error.take().map_or(Ok(calls), |error| Err(error.into()))
            }
        })
    }

    /// Looks up keys that a cache has.
    pub(super) fn hits(&self, eviction: Eviction) -> Result<f64> {
        let cache = self.full_cache(eviction)?;
        self.rate(WARM, |index| {
            let mut random = index as u64 + 1;
            let cache = &cache;
            move || {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e);
                let key = ((random >> 33) * KEYS) >> 31;
                // The cache may hold slightly fewer keys than were inserted.
                black_box(cache.get(&key).is_some());
                Ok(1)
            }
        })
    }

    /// Inserts keys, each of which evicts another one.
    pub(super) fn insertions(&self, eviction: Eviction) -> Result<f64> {
        let cache = self.full_cache(eviction)?;
        self.rate(WARM, |index| {
            let mut fresh = (1 << 40) + ((index as u64) << 32);
            let cache = &cache;
            move || {
                fresh += 1;
                cache.insert_filled(fresh, VALUE_BYTES, |bytes| bytes.fill(fresh as u8))?;
                Ok(1)
            }
        })
    }

    /// Makes a cache that is full, and the same in every process.
    fn full_cache(&self, eviction: Eviction) -> Result<KvCache<u64>> {
        cores::set_processors(self.cores as usize);
        let pool = Pool::builder(2 * KEYS as usize * VALUE_BYTES).build()?;
        let cache = KvCache::builder(&pool).eviction(eviction).max_blocks(KEYS).seed(1).build()?;
        for key in 0..KEYS {
            cache.insert_filled(key, VALUE_BYTES, |bytes| bytes.fill(key as u8))?;
        }
        Ok(cache)
    }

    /// Allocates from an arena.
    pub(super) fn bump(&self, size: usize) -> Result<f64> {
        cores::set_processors(self.cores as usize);
        let steps = self.calls + u64::from(self.cores) * u64::from(WARM.steps + 2);
        let steps = usize::try_from(steps.max(BUMP_CALLS)).ok();
        let bytes = steps.and_then(|steps| steps.checked_mul(size.max(ALIGN)));
        let arena = KvmemArena::create(bytes.context("the arena exceeds the address space")?)?;
        self.rate(WARM, |_| {
            || {
                let block = arena.allocate(black_box(size), black_box(ALIGN));
                ensure!(black_box(block).is_some(), "the arena is full");
                Ok(1)
            }
        })
    }
}

/// What each thread does before the clock starts.
#[derive(Clone, Copy)]
struct Warm {
    steps: u32,
    /// Virtual nanoseconds after which a thread makes no more steps.
    time: u64,
}

/// Calls that an arena has room for, as in the suite `arena`: chunks are parts of it.
const BUMP_CALLS: u64 = 4_000_000;
/// As many steps as in `concurrency`.
const WARM: Warm = Warm { steps: 1000, time: 1_000_000 };
/// Enough for 64 threads to get their magazines one after the other, which nap for 50 µs each time
/// that the registry of threads is locked.
const WARM_TO_JOIN: Warm = Warm { steps: 1000, time: 10_000_000 };
/// Enough for a space to be cut into shards, which takes milliseconds once.
const WARM_TO_CUT: Warm = Warm { steps: 1_000_000, time: 40_000_000 };
