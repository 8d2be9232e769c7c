//! *Measure*: one scenario with one contender on so many threads.

use std::hint::black_box;

use kvmem::pool::{KvCache, Pool};
use kvmem::slab::ExtentCache;

use super::contender::{Floor, Insert, LookUp, Quick};
use super::pairs::{Blocks, Nothing};
use super::{ContenderId, KEYS, MeasureError, Scenario};
use crate::concurrent_suite::suite;
use crate::concurrent_suite::thread_loop::{ThreadLoop, mops};
use crate::team;

/// Calls between two looks whether the time has run out.
const CALLS: u64 = 64;
/// Such runs of calls before the clock starts.
const WARM: u32 = 320;
/// Keys from here on are never put in before the clock starts.
const STRANGERS: u64 = 1 << 40;

/// One measurement.
pub(super) type CacheTask = suite::SuiteTask<Scenario, ContenderId>;

/// Runs `task` once: million calls a second of all threads.
pub(super) fn measure(task: &CacheTask) -> Result<f64, MeasureError> {
    match task.contender {
        ContenderId::Kvmem | ContenderId::KvmemScan => cached::<KvCache<u64>>(task),
        ContenderId::QuickCache => cached::<Quick>(task),
        ContenderId::Floor => looked_up(task, &Floor::filled()),
        ContenderId::Pool => paired::<Pool>(task),
        ContenderId::Extents => paired::<ExtentCache>(task),
        ContenderId::Null => paired::<Nothing>(task),
    }
}

/// A scenario of keyed blocks, with one who can do all of them.
fn cached<C: Insert>(task: &CacheTask) -> Result<f64, MeasureError> {
    let cache = C::create(task.contender)?;
    for key in 0..KEYS {
        cache.insert(key)?;
    }
    if task.scenario != Scenario::InsertEvict {
        return looked_up(task, &cache);
    }
    rate(task, |index| {
        // Each thread's strangers are its own.
        let mut fresh = STRANGERS + ((index as u64) << 32);
        let cache = &cache;
        move || {
            fresh += 1;
            cache.insert(fresh)
        }
    })
}

/// A scenario of look-ups.
fn looked_up(task: &CacheTask, table: &impl LookUp) -> Result<f64, MeasureError> {
    // A contender may hold some fewer than its limit allows.
    let held: Vec<u64> = (0..KEYS).filter(|&key| table.get(key)).collect();
    if (held.len() as u64) < KEYS * 9 / 10 {
        return Err(MeasureError::Lost { held: held.len() as u64 });
    }
    match task.scenario {
        Scenario::GetHit => rate(task, |index| {
            let mut random = random(index);
            let held = &held;
            move || {
                let key = held[((random() * held.len() as u64) >> 31) as usize];
                if table.get(key) { Ok(()) } else { Err(MeasureError::Wrong { key }) }
            }
        }),
        Scenario::GetMiss => rate(task, |index| {
            let mut random = random(index);
            move || {
                let key = STRANGERS + random();
                if table.get(key) { Err(MeasureError::Wrong { key }) } else { Ok(()) }
            }
        }),
        Scenario::InsertEvict | Scenario::BlockPair => Err(MeasureError::NoPart),
    }
}

/// The scenario of blocks.
fn paired<C: Blocks>(task: &CacheTask) -> Result<f64, MeasureError> {
    if task.scenario != Scenario::BlockPair {
        return Err(MeasureError::NoPart);
    }
    let blocks = C::create()?;
    rate(task, |_| {
        || {
            drop(black_box(blocks.allocate()?));
            Ok(())
        }
    })
}

/// Numbers below 2^31 that look random.
fn random(index: usize) -> impl FnMut() -> u64 {
    let mut state = index as u64 + 1;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    }
}

/// Million calls a second of all threads; `caller` makes what the thread of a number calls.
fn rate<F: FnMut() -> Result<(), MeasureError>>(
    task: &CacheTask,
    caller: impl Fn(usize) -> F + Sync,
) -> Result<f64, MeasureError> {
    let work = |member: &team::Member<'_>| {
        let mut call = caller(member.index);
        ThreadLoop::run(member, WARM, |_| (0..CALLS).try_for_each(|_| call()).map(|()| CALLS))
    };
    let found = team::run(task.threads, task.time, work, || ())?;
    let shifts = found.threads.into_iter().collect::<Result<Vec<_>, _>>()?;
    mops(&shifts).ok_or(MeasureError::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_scenario_is_measured_with_those_who_take_part() {
        for scenario in Scenario::ALL {
            for contender in ContenderId::ALL {
                let task =
                    CacheTask { scenario, contender, threads: 2, time: Duration::from_millis(2) };
                match measure(&task) {
                    Ok(mops) => {
                        assert!(contender.takes_part(scenario) && mops > 0.0, "{task:?}: {mops}")
                    }
                    Err(error) => {
                        assert!(!contender.takes_part(scenario) && error == MeasureError::NoPart)
                    }
                }
            }
        }
    }
}
