//! *Goals* of keyed blocks, evaluated on the rows.
//!
//! A second thread counts only if it has its own processor.

use super::{CacheContenderId, CacheRow, CacheScenario};
use crate::suite::GoalList;

/// Adds every goal that `rows`, of a machine with `cores` processors, can decide.
pub(super) fn add(rows: &[CacheRow], cores: usize, goals: &mut GoalList) {
    let find = |scenario, contender, threads: u32| {
        rows.iter().find(|row| {
            (row.scenario, row.contender, row.threads) == (scenario, contender, threads)
        })
    };
    let hit = |threads| find(CacheScenario::GetHit, CacheContenderId::Kvmem, threads);
    let pair = |contender| find(CacheScenario::BlockPair, contender, 1);
    let alone = hit(1).map(|row| (row.ns, None));
    goals.at_most("get-hit: ns on one thread, 100,000 keys", 60.0, alone);
    if cores >= 2 {
        let ratio = hit(1).zip(hit(2)).map(|(one, two)| (two.mops / one.mops, None));
        goals.at_least("get-hit: rate of two threads over that of one", 1.7, ratio);
    }
    let tiered = find(CacheScenario::GetHit, CacheContenderId::KvmemTier, 1);
    let more = tiered.zip(hit(1)).map(|(tiered, alone)| (tiered.ns - alone.ns, None));
    goals.at_most("get-hit: ns above a disk tier more than without, one thread", 2.0, more);
    let more = pair(CacheContenderId::Pool).zip(pair(CacheContenderId::Extents));
    let more = more.map(|(pool, extents)| (pool.ns - extents.ns, None));
    goals.at_most("block-pair: ns of a pool more than of its extents, one thread", 10.0, more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;
    use CacheContenderId::{Extents, Kvmem, KvmemTier, Pool, QuickCache};
    use CacheScenario::{BlockPair, GetHit, GetMiss};

    fn of(rows: &[CacheRow], cores: usize) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, cores, goals))
    }

    #[test]
    fn hits_are_compared_with_the_clock_two_threads_with_one_and_blocks_with_extents() {
        let row = |scenario, contender, threads: u32, mops| CacheRow {
            scenario,
            contender,
            threads,
            mops,
            ns: f64::from(threads) * 1e3 / mops,
        };
        let rows = [
            row(GetMiss, Kvmem, 1, 1.0),
            row(GetHit, QuickCache, 1, 1.0),
            row(GetHit, Kvmem, 1, 25.0),
            row(GetHit, Kvmem, 2, 40.0),
            row(GetHit, KvmemTier, 2, 1.0),
            row(GetHit, KvmemTier, 1, 20.0),
            row(BlockPair, Extents, 1, 200.0),
            row(BlockPair, Pool, 2, 1.0),
            row(BlockPair, Pool, 1, 50.0),
        ];
        let found: Vec<_> = of(&rows, 2).iter().map(|goal| (goal.value, goal.met())).collect();
        let expected = [(40.0, true), (1.6, false), (10.0, false), (15.0, false)];
        assert_eq!(found, expected);
        assert_eq!(of(&rows, 1).len(), 3);
        assert!(of(&rows[..2], 2).is_empty());
    }
}
