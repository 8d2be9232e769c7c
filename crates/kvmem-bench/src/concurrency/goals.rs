//! *Goals* of shared allocators of offsets, evaluated on the rows.
//!
//! A second thread counts only if it has its own processor.

use super::{ConcurrencyContenderId, ConcurrencyRow, ConcurrencyScenario};
use crate::suite::{GoalList, ratios};

use ConcurrencyContenderId::{Binned, KvmemCached};
use ConcurrencyScenario::{
    CrossThread, Fragmented, HighWater, Impossible, Pair2M, Pair4K, PairOdd,
};

/// Groups of scenarios with their own goals.
const KINDS: [(&str, &[ConcurrencyScenario]); 5] = [
    ("pairs", &[Pair4K, Pair2M, PairOdd]),
    ("high-water", &[HighWater]),
    ("impossible", &[Impossible]),
    ("fragmented", &[Fragmented]),
    ("cross-thread", &[CrossThread]),
];

/// Adds every goal that `rows`, of a machine with `cores` processors, can decide.
pub(super) fn add(rows: &[ConcurrencyRow], cores: usize, goals: &mut GoalList) {
    if cores >= 2 {
        for (other, contender, threads, limit) in
            [("one", KvmemCached, 1, 1.8), ("binned", Binned, 2, 10.0)]
        {
            for (kind, scenarios) in KINDS {
                let name = format!("{kind}: rate of two threads over that of {other}");
                let ratios = ratios(
                    rows,
                    |row| {
                        scenarios.contains(&row.scenario)
                            && (row.contender, row.threads) == (KvmemCached, 2)
                    },
                    |ours, row| {
                        (row.scenario, row.contender, row.threads)
                            == (ours.scenario, contender, threads)
                    },
                    |row| Some(row.mops),
                    |row| Some(row.scenario.to_string()),
                );
                goals.at_least(name, limit, ratios);
            }
        }
    }
    let alone = |row: &&ConcurrencyRow| {
        (row.scenario, row.contender) == (Impossible, KvmemCached) && row.threads as usize <= cores
    };
    let each = rows.iter().filter(alone).map(|row| {
        let ns = f64::from(row.threads) * 1e3 / row.mops;
        (ns, Some(format!("{} thread(s)", row.threads)))
    });
    goals.at_most("impossible: ns of a request that fails", 10.0, each);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;

    fn row(
        scenario: ConcurrencyScenario,
        contender: ConcurrencyContenderId,
        threads: u32,
        mops: f64,
    ) -> ConcurrencyRow {
        ConcurrencyRow { scenario, contender, threads, mops, p50_ns: 1.0, p99_ns: 2.0 }
    }

    fn of(rows: &[ConcurrencyRow], cores: usize) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, cores, goals))
    }

    #[test]
    fn two_threads_are_compared_with_one_and_with_the_other_allocator() {
        let rows = [
            row(Pair4K, KvmemCached, 1, 10.0),
            row(Pair4K, KvmemCached, 2, 19.0),
            row(Pair4K, Binned, 2, 1.9),
            row(PairOdd, KvmemCached, 1, 10.0),
            row(PairOdd, KvmemCached, 2, 15.0),
            row(Impossible, KvmemCached, 1, 200.0),
            row(Impossible, KvmemCached, 2, 160.0),
            row(Impossible, KvmemCached, 4, 1.0),
        ];
        let goals = of(&rows, 2);
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(1.5, false), (0.8, false), (10.0, true), (12.5, false)]);
        assert_eq!(goals[0].at.as_deref(), Some("pair-3274752"));
        // On one processor, two threads decide nothing.
        assert_eq!(of(&rows, 1).iter().map(|goal| goal.value).collect::<Vec<_>>(), [5.0]);
    }
}
