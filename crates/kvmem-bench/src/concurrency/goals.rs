//! *Goals* of shared allocators of offsets, evaluated on the rows.
//!
//! A second thread counts only if it has its own processor.

use super::{ConcurrencyContenderId, ConcurrencyRow, ConcurrencyScenario};
use crate::suite::{GoalList, ratios};

use ConcurrencyContenderId::{Binned, KvmemCached};
use ConcurrencyScenario::{
    CrossThread, Fragmented, HighWater, Impossible, Pair2M, Pair4K, PairOdd, TooFragmented,
};

/// A goal for each of its scenarios: the rate of some threads over another rate.
struct RateGoal {
    name: &'static str,
    scenarios: &'static [ConcurrencyScenario],
    /// The numbers of threads that count.
    threads: &'static [u32],
    over: Over,
    limit: f64,
}

/// The rate with which a rate is compared.
#[derive(Clone, Copy)]
enum Over {
    /// Of one thread.
    One,
    /// Of as many threads with the other allocator.
    Other,
}

/// The goals for rates. Requests of a full space are refused by one load before the lock in both
/// allocators, so these are compared with one thread only. Sizes that are all different pass the
/// magazines and share one lock: threads cannot be faster there than one, but must not be slower.
const RATES: [RateGoal; 11] = {
    use Over::{One, Other};
    const PAIRS: &[ConcurrencyScenario] = &[Pair4K, Pair2M, PairOdd];
    const fn rate(
        name: &'static str,
        scenarios: &'static [ConcurrencyScenario],
        threads: &'static [u32],
        over: Over,
        limit: f64,
    ) -> RateGoal {
        RateGoal { name, scenarios, threads, over, limit }
    }
    [
        rate("pairs: rate of two threads over that of one", PAIRS, &[2], One, 1.8),
        rate("high-water: rate of two threads over that of one", &[HighWater], &[2], One, 1.8),
        rate("impossible: rate of two threads over that of one", &[Impossible], &[2], One, 1.8),
        rate("cross-thread: rate of two threads over that of one", &[CrossThread], &[2], One, 1.8),
        rate("fragmented: rate of two threads over that of one", &[Fragmented], &[2], One, 1.0),
        rate(
            "fragmented: rate of four and sixteen threads over that of one",
            &[Fragmented],
            &[4, 16],
            One,
            0.9,
        ),
        rate("pairs: rate of two threads over that of binned", PAIRS, &[2], Other, 10.0),
        rate(
            "high-water: rate of two threads over that of binned",
            &[HighWater],
            &[2],
            Other,
            10.0,
        ),
        rate(
            "cross-thread: rate of two threads over that of binned",
            &[CrossThread],
            &[2],
            Other,
            10.0,
        ),
        rate(
            "fragmented: rate of two threads over that of binned",
            &[Fragmented],
            &[2],
            Other,
            1.5,
        ),
        rate(
            "fragmented: rate of four and sixteen threads over that of binned",
            &[Fragmented],
            &[4, 16],
            Other,
            1.5,
        ),
    ]
};

/// Adds every goal that `rows`, of a machine with `cores` processors, can decide.
pub(super) fn add(rows: &[ConcurrencyRow], cores: usize, goals: &mut GoalList) {
    if cores >= 2 {
        for goal in &RATES {
            let ratios = ratios(
                rows,
                |row| {
                    goal.scenarios.contains(&row.scenario)
                        && goal.threads.contains(&row.threads)
                        && row.contender == KvmemCached
                },
                |ours, row| {
                    let (contender, threads) = match goal.over {
                        Over::One => (KvmemCached, 1),
                        Over::Other => (Binned, ours.threads),
                    };
                    (row.scenario, row.contender, row.threads)
                        == (ours.scenario, contender, threads)
                },
                |row| Some(row.mops),
                |row| Some(format!("{}, {} threads", row.scenario, row.threads)),
            );
            goals.at_least(goal.name, goal.limit, ratios);
        }
    }
    let alone = |row: &&ConcurrencyRow| {
        matches!(row.scenario, Impossible | TooFragmented)
            && row.contender == KvmemCached
            && row.threads as usize <= cores
    };
    let each = rows.iter().filter(alone).map(|row| {
        let ns = f64::from(row.threads) * 1e3 / row.mops;
        (ns, Some(format!("{}, {} thread(s)", row.scenario, row.threads)))
    });
    goals.at_most("impossible, too-fragmented: ns of a request that fails", 3.0, each);
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
            row(Impossible, KvmemCached, 1, 400.0),
            row(Impossible, KvmemCached, 2, 500.0),
            row(Impossible, KvmemCached, 4, 1.0),
            row(Fragmented, KvmemCached, 1, 5.0),
            row(Fragmented, KvmemCached, 2, 5.5),
            row(Fragmented, KvmemCached, 4, 4.0),
            row(Fragmented, KvmemCached, 16, 5.0),
            row(Fragmented, Binned, 16, 2.5),
        ];
        let goals = of(&rows, 2);
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(
            found,
            [
                (1.5, false),
                (1.25, false),
                (1.1, true),
                (0.8, false),
                (10.0, true),
                (2.0, true),
                (4.0, false)
            ]
        );
        assert_eq!(goals[0].at.as_deref(), Some("pair-3274752, 2 threads"));
        assert_eq!(goals[3].at.as_deref(), Some("fragmented, 4 threads"));
        // On one processor, two threads decide nothing.
        assert_eq!(of(&rows, 1).iter().map(|goal| goal.value).collect::<Vec<_>>(), [2.5]);
    }
}
