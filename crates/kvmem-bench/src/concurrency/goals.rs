//! The performance goals of shared allocators of offsets, evaluated on the rows.
//!
//! A goal is reported when the rows it needs exist. A second thread counts only if it has its own
//! processor. If several rows count, the worst is reported with its name.

use super::{ConcurrencyContenderId, ConcurrencyRow, ConcurrencyScenario};
use crate::report::Goal;

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

/// Returns every goal that `rows`, of a machine with `cores` processors, can decide.
pub(super) fn of(rows: &[ConcurrencyRow], cores: usize) -> Vec<Goal> {
    let mut goals = Vec::new();
    if cores >= 2 {
        for (kind, scenarios) in KINDS {
            let what = format!("{kind}: rate of two threads over that of one");
            goals.extend(Goal::at_least(
                &what,
                two_over(rows, scenarios, ConcurrencyContenderId::KvmemCached, 1),
                1.8,
            ));
        }
        for (kind, scenarios) in KINDS {
            let what = format!("{kind}: rate of two threads over that of binned");
            goals.extend(Goal::at_least(
                &what,
                two_over(rows, scenarios, ConcurrencyContenderId::Binned, 2),
                10.0,
            ));
        }
    }
    let alone = |row: &&ConcurrencyRow| {
        row.scenario == Impossible
            && row.contender == ConcurrencyContenderId::KvmemCached
            && row.threads as usize <= cores
    };
    let each = rows.iter().filter(alone).map(|row| {
        let ns = f64::from(row.threads) * 1e3 / row.mops;
        (ns, Some(format!("{} thread(s)", row.threads)))
    });
    goals.extend(Goal::at_most("impossible: ns of a request that fails", each, 10.0));
    goals
}

/// Divides the library's rate on two threads by that of `other` on `threads`, for each scenario.
fn two_over(
    rows: &[ConcurrencyRow],
    scenarios: &[ConcurrencyScenario],
    other: ConcurrencyContenderId,
    threads: u32,
) -> impl Iterator<Item = (Option<f64>, Option<String>)> {
    let rate = |scenario, contender, threads| {
        let same = |row: &&ConcurrencyRow| {
            (row.scenario, row.contender, row.threads) == (scenario, contender, threads)
        };
        rows.iter().find(same).map(|row| row.mops)
    };
    scenarios.iter().map(move |&scenario| {
        let ratio = rate(scenario, ConcurrencyContenderId::KvmemCached, 2)
            .zip(rate(scenario, other, threads));
        (ratio.map(|(ours, theirs)| ours / theirs), Some(scenario.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConcurrencyContenderId::{Binned, KvmemCached};

    fn row(
        scenario: ConcurrencyScenario,
        contender: ConcurrencyContenderId,
        threads: u32,
        mops: f64,
    ) -> ConcurrencyRow {
        ConcurrencyRow { scenario, contender, threads, mops, p50_ns: 1.0, p99_ns: 2.0 }
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
