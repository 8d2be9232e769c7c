//! The performance goals of keyed blocks, evaluated on the rows.
//!
//! A goal is reported when the rows it needs exist. A second thread counts only if it has its own
//! processor.

use super::{CacheContenderId, CacheRow, CacheScenario};
use crate::report::Goal;

/// Returns every goal that `rows`, of a machine with `cores` processors, can decide.
pub(super) fn of(rows: &[CacheRow], cores: usize) -> Vec<Goal> {
    let find = |scenario, contender, threads: u32| {
        rows.iter().find(|row| {
            (row.scenario, row.contender, row.threads) == (scenario, contender, threads)
        })
    };
    let hit = |threads| find(CacheScenario::GetHit, CacheContenderId::Kvmem, threads);
    let pair = |contender| find(CacheScenario::BlockPair, contender, 1);
    let mut goals = Vec::new();
    let alone = hit(1).map(|row| (row.ns, None));
    goals.extend(Goal::at_most("get-hit: ns on one thread, 100,000 keys", alone, 60.0));
    if cores >= 2 {
        let ratio = hit(1).zip(hit(2)).map(|(one, two)| (Some(two.mops / one.mops), None));
        goals.extend(Goal::at_least("get-hit: rate of two threads over that of one", ratio, 1.7));
    }
    let more = pair(CacheContenderId::Pool).zip(pair(CacheContenderId::Extents));
    let more = more.map(|(pool, extents)| (pool.ns - extents.ns, None));
    goals.extend(Goal::at_most(
        "block-pair: ns of a pool more than of its extents, one thread",
        more,
        10.0,
    ));
    goals
}

#[cfg(test)]
mod tests {
    use super::*;
    use CacheContenderId::{Extents, Kvmem, Pool, QuickCache};
    use CacheScenario::{BlockPair, GetHit, GetMiss};

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
            row(BlockPair, Extents, 1, 200.0),
            row(BlockPair, Pool, 2, 1.0),
            row(BlockPair, Pool, 1, 50.0),
        ];
        let found: Vec<_> = of(&rows, 2).iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(40.0, true), (1.6, false), (15.0, false)]);
        assert_eq!(of(&rows, 1).len(), 2);
        assert!(of(&rows[..2], 2).is_empty());
    }
}
