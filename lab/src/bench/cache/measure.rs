//! One scenario with one contender on one number of threads.

use std::hint::black_box;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kvmem::cache::KvCache;
use kvmem::pool::Pool;
use kvmem::slab::ExtentCache;

use super::contender::{FloorTable, Insert, LookUp, QuickTable, TieredCache};
use super::pairs::{BlockSource, NoBlocks};
use super::{CacheContenderId, CacheScenario, KEYS};
use crate::bench::suite::SMALLEST;
use crate::bench::team::{self, ThreadLoop, mops};

/// Calls between two checks of the time.
const CALLS: u64 = 64;
/// Rounds of [`CALLS`] calls before the clock starts.
const WARM: u32 = if SMALLEST { 8 } else { 320 };
/// Keys from here on are never inserted before the clock starts.
const FRESH_KEYS: u64 = 1 << 40;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheTask {
    pub(super) scenario: CacheScenario,
    pub(super) contender: CacheContenderId,
    pub(super) threads: u32,
    pub(super) time: Duration,
}

/// Measures `task` once; returns the million calls per second of all threads.
pub(super) fn measure(task: &CacheTask) -> Result<f64> {
    match task.contender {
        CacheContenderId::Kvmem | CacheContenderId::KvmemScan => cached::<KvCache<u64>>(task),
        CacheContenderId::KvmemTier => cached::<TieredCache>(task),
        CacheContenderId::QuickCache => cached::<QuickTable>(task),
        CacheContenderId::Floor => looked_up(task, &FloorTable::filled()),
        CacheContenderId::Pool => paired::<Pool>(task),
        CacheContenderId::Extents => paired::<ExtentCache>(task),
        CacheContenderId::Null => paired::<NoBlocks>(task),
    }
}

/// Measures a scenario of keyed blocks with a table that supports all of them.
fn cached<C: Insert>(task: &CacheTask) -> Result<f64> {
    let cache = C::create(task.contender)?;
    for key in 0..KEYS {
        cache.insert(key)?;
    }
    if task.scenario != CacheScenario::InsertEvict {
        return looked_up(task, &cache);
    }
    rate(task, |index| {
        // Each thread has its own fresh keys.
        let mut fresh = FRESH_KEYS + ((index as u64) << 32);
        let cache = &cache;
        move || {
            fresh += 1;
            cache.insert(fresh)
        }
    })
}

/// Measures a scenario of look-ups.
fn looked_up(task: &CacheTask, table: &impl LookUp) -> Result<f64> {
    // A contender may hold slightly fewer than its limit.
    let held: Vec<u64> = (0..KEYS).filter(|&key| table.get(key)).collect();
    let lost = KEYS - held.len() as u64;
    ensure!(lost <= KEYS / 10, "{lost} of {KEYS} inserted values are not found");
    match task.scenario {
        CacheScenario::GetHit => rate(task, |index| {
            let mut random = random(index);
            let held = &held;
            move || {
                let key = held[((random() * held.len() as u64) >> 31) as usize];
                ensure!(table.get(key), "key {key} was inserted, and is not found");
                Ok(())
            }
        }),
        CacheScenario::GetMiss => rate(task, |index| {
            let mut random = random(index);
            move || {
                let key = FRESH_KEYS + random();
                ensure!(!table.get(key), "key {key} was never inserted, and is found");
                Ok(())
            }
        }),
        CacheScenario::InsertEvict | CacheScenario::BlockPair => bail!("no look-ups: {task:?}"),
    }
}

/// Measures the scenario of blocks.
fn paired<C: BlockSource>(task: &CacheTask) -> Result<f64> {
    ensure!(task.scenario == CacheScenario::BlockPair, "no keys: {task:?}");
    let blocks = C::create()?;
    rate(task, |_| {
        || {
            drop(black_box(blocks.allocate()?));
            Ok(())
        }
    })
}

/// Returns a generator of pseudo-random numbers below 2^31.
fn random(index: usize) -> impl FnMut() -> u64 {
    let mut state = index as u64 + 1;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    }
}

/// Returns the million calls per second of all threads; `caller` creates the call of each thread.
fn rate<F: FnMut() -> Result<()>>(
    task: &CacheTask,
    caller: impl Fn(usize) -> F + Sync,
) -> Result<f64> {
    let work = |member: &team::Member<'_>| {
        let mut call = caller(member.index);
        ThreadLoop::run(member, WARM, |_| (0..CALLS).try_for_each(|_| call()).map(|()| CALLS))
    };
    let result = team::run(task.threads, task.time, work, || ())?;
    mops(&result.threads.into_iter().collect::<Result<Vec<_>>>()?)
}
