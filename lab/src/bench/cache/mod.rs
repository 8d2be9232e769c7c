//! The benchmark of pools under threads: keyed blocks in one cache that several threads share, and
//! blocks of a hot size.
//!
//! 1. *Keyed blocks.* The cache holds 100,000 values of 256 B, which is its limit.
//!    [`CacheScenario::GetHit`] looks up random cached keys and releases the values, also above a
//!    disk tier, which such a look-up does not reach;
//!    [`CacheScenario::GetMiss`] looks up keys that are not cached. [`CacheScenario::InsertEvict`]
//!    inserts new keys, each of which evicts another value. The contenders: the library with each
//!    of its policies, over a pool; the `quick_cache` crate's concurrent cache with the same hash
//!    function, over reference-counted slices of the system's heap: no registered memory, but the
//!    same service for its callers; and for look-ups a *floor*: an immutable table of the standard
//!    library without locks, pins or recency, whose entries are separate allocations as in the
//!    other tables. The floor's rate on two threads over that on one is what the machine allows.
//! 2. *Blocks.* [`CacheScenario::BlockPair`] allocates a block of 4 KiB, a hot size, and drops it:
//!    from a pool, from an [`ExtentCache`](kvmem::slab::ExtentCache), which knows of no memory, and
//!    from no allocator: the cost of the loop.
//! 3. *Hits.* [`hits`] measures the hit rates of eviction policies instead of times.
//! 4. *Operations.* An operation is one call including the choice of its key, or a pair of
//!    `allocate` and drop. Values that are found are not read, because that would measure the
//!    memory.

mod contender;
pub mod hits;
mod measure;
mod pairs;

use std::time::Duration;

use anyhow::Result;

use self::measure::{CacheTask, measure};
use super::machine::Machine;
use super::suite::{Figures, Run, SMALLEST, Turns, names};

/// Number of values in the cache. A build without optimization takes long to insert them, and has a
/// tenth of them.
pub const KEYS: u64 = if SMALLEST { 10_000 } else { 100_000 };
/// Bytes of each value.
pub const VALUE_BYTES: usize = 256;

/// Threads of the scenario that is judged on a machine with as many processors.
const MANY: u32 = 16;

/// Bytes of a block in pairs.
pub const BLOCK_BYTES: usize = 4096;

/// Runs the benchmark.
pub fn run(run: &mut Run) -> Result<()> {
    let reps = run.reps(7, 3);
    run.settings(format_args!("{reps} repetition(s)"));
    let time = Duration::from_millis(run.length(300, 40, 4));
    for scenario in CacheScenario::ALL {
        let table = scenario.name();
        run.about(table, "nanoseconds of a call, and million calls a second of all threads");
        let able: Vec<CacheContenderId> =
            CacheContenderId::ALL.into_iter().filter(|id| id.takes_part(scenario)).collect();
        let scales =
            scenario == CacheScenario::InsertEvict && Machine::here().cores >= MANY as usize;
        for threads in [1, 2, 4].into_iter().chain(scales.then_some(MANY)) {
            let line = format!("{threads} thread(s)");
            run.turns((table, &line), &able, Turns::of(reps), |contender, _| {
                let rate = measure(&CacheTask { scenario, contender, threads, time })?;
                Ok(Figures::of("ns", f64::from(threads) * 1e3 / rate).with("M/s", rate))
            })?;
        }
    }
    goals(run);
    Ok(())
}

fn goals(run: &mut Run) {
    let of = |run: &Run, table: &str, id: CacheContenderId, figure: &str, threads: u32| {
        let line = format!("{threads} thread(s)");
        run.values(table, id, figure, |of| of == line).pop().map(|(value, _)| value)
    };
    let hit = |run: &Run, id, figure, threads| of(run, "get-hit", id, figure, threads);
    let figure =
        |value: Option<f64>| value.map(|value| (value, String::new())).into_iter().collect();
    let ours = CacheContenderId::Kvmem;
    let one = hit(run, ours, "ns", 1);
    run.at_most("get-hit: ns on one thread, 100,000 keys", 60.0, figure(one));
    // A second thread counts only if it has its own processor.
    if Machine::here().cores >= 2 {
        let rates = hit(run, ours, "M/s", 2).zip(hit(run, ours, "M/s", 1));
        let ratio = rates.map(|(two, one)| two / one);
        run.at_least("get-hit: rate of two threads over that of one", 1.7, figure(ratio));
    }
    let tiered = hit(run, CacheContenderId::KvmemTier, "ns", 1).zip(one);
    let more = tiered.map(|(tiered, alone)| tiered - alone);
    run.at_most("get-hit: ns above a disk tier more than without", 2.0, figure(more));
    insertions(run, |run, id, figure, threads| of(run, "insert-evict", id, figure, threads));
    let pair = |run: &Run, id| of(run, "block-pair", id, "ns", 1);
    let pairs = pair(run, CacheContenderId::Pool).zip(pair(run, CacheContenderId::Extents));
    let more = pairs.map(|(pool, extents)| pool - extents);
    run.at_most("block-pair: ns of a pool more than of its extents", 10.0, figure(more));
}

/// Adds the goals of insertions that evict. More threads than processors are not judged.
fn insertions(run: &mut Run, of: impl Fn(&Run, CacheContenderId, &str, u32) -> Option<f64>) {
    use CacheContenderId::{Kvmem, KvmemScan, QuickCache};

    let cores = Machine::here().cores;
    let judged = |threads: &u32| *threads as usize <= cores;
    let over = |above: Option<f64>, below: Option<f64>, threads: u32| {
        above.zip(below).map(|(above, below)| (above / below, format!("{threads} thread(s)")))
    };
    let (mut beside, mut scan) = (Vec::new(), Vec::new());
    for threads in [1, 2, 4, MANY].into_iter().filter(judged) {
        let ours = of(run, Kvmem, "M/s", threads);
        beside.extend(over(ours, of(run, QuickCache, "M/s", threads), threads));
        scan.extend(over(ours, of(run, KvmemScan, "M/s", threads), threads));
    }
    run.at_least("insert-evict: rate over that of quick_cache", 0.6, beside);
    run.at_most("insert-evict: time of the scan-resistant policy over LRU's", 1.2, scan);
    for (threads, least) in [(4, 3.0), (MANY, 8.0)] {
        if judged(&threads) {
            let (more, one) = (of(run, Kvmem, "M/s", threads), of(run, Kvmem, "M/s", 1));
            let name = format!("insert-evict: rate of {threads} threads over that of one");
            run.at_least(&name, least, over(more, one, threads).into_iter().collect());
        }
    }
}

names! {
    /// The scenarios by name.
    pub enum CacheScenario ("scenario") {
        GetHit = "get-hit",
        GetMiss = "get-miss",
        InsertEvict = "insert-evict",
        BlockPair = "block-pair",
    }
}

names! {
    /// The contenders by name.
    pub enum CacheContenderId ("contender") {
        Kvmem = "kvmem",
        KvmemScan = "kvmem-scan",
        KvmemTier = "kvmem-tier",
        QuickCache = "quick-cache",
        Floor = "floor",
        Pool = "pool",
        /// The ranges from which a pool takes its blocks.
        Extents = "extents",
        Null = "null",
    }
}

impl CacheContenderId {
    /// Returns whether it supports a scenario.
    pub fn takes_part(self, scenario: CacheScenario) -> bool {
        match self {
            Self::Kvmem | Self::KvmemScan | Self::QuickCache => {
                scenario != CacheScenario::BlockPair
            }
            Self::KvmemTier => scenario == CacheScenario::GetHit,
            Self::Floor => matches!(scenario, CacheScenario::GetHit | CacheScenario::GetMiss),
            Self::Pool | Self::Extents | Self::Null => scenario == CacheScenario::BlockPair,
        }
    }
}
