//! *Goals* of the slab layer, evaluated on the rows.
//!
//! Three threads are measured but are not part of a goal.

use super::{Pattern, SlabContenderId, SlabRow};
use crate::suite::{FigureOf, GoalList, ratios};

use SlabContenderId::{GSlice, Kvmem, Mimalloc};

/// Numbers of threads that are part of the goals.
const THREADS: [u32; 3] = [1, 2, 4];

/// Adds every goal that `rows` can decide.
pub(super) fn add(rows: &[SlabRow], goals: &mut GoalList) {
    let time = |row: &SlabRow| Some(row.ns_per_pair);
    let memory = |row: &SlabRow| row.rss_bytes.map(|bytes| bytes as f64);
    let limits: [(&str, SlabContenderId, f64, FigureOf<SlabRow>); 3] = [
        ("random: time over that of mimalloc", Mimalloc, 0.8, time),
        ("random: time over that of g-slice", GSlice, 0.5, time),
        ("random: resident memory over that of mimalloc", Mimalloc, 1.15, memory),
    ];
    for (name, other, limit, figure) in limits {
        let counts = |row: &SlabRow, contender| {
            row.contender == contender
                && row.pattern == Pattern::Random
                && THREADS.contains(&row.threads)
        };
        let ratios = ratios(
            rows,
            |row| counts(row, Kvmem),
            |ours, row| {
                counts(row, other)
                    && (row.max_block_bytes, row.threads) == (ours.max_block_bytes, ours.threads)
            },
            figure,
            |row| Some(format!("≤ {} B, {} thread(s)", row.max_block_bytes, row.threads)),
        );
        goals.at_most(name, limit, ratios);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;

    fn of(rows: &[SlabRow]) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, goals))
    }

    fn row(
        contender: SlabContenderId,
        threads: u32,
        ns_per_pair: f64,
        rss_bytes: Option<u64>,
    ) -> SlabRow {
        SlabRow {
            pattern: Pattern::Random,
            max_block_bytes: 512,
            threads,
            contender,
            ns_per_pair,
            rss_bytes,
        }
    }

    #[test]
    fn the_worst_row_counts_and_like_is_compared_with_like() {
        let fixed = SlabRow { pattern: Pattern::Fixed, ..row(Kvmem, 1, 1000.0, None) };
        let rows = [
            row(Kvmem, 1, 8.0, Some(100)),
            row(Kvmem, 2, 9.0, Some(120)),
            row(Kvmem, 3, 90.0, None),
            row(Mimalloc, 1, 16.0, Some(100)),
            row(Mimalloc, 2, 10.0, Some(100)),
            row(Mimalloc, 3, 10.0, None),
            row(GSlice, 1, 20.0, None),
            fixed,
        ];
        let goals = of(&rows);
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(0.9, false), (0.4, true), (1.2, false)]);
        assert_eq!(goals[0].at.as_deref(), Some("≤ 512 B, 2 thread(s)"));
        assert!(of(&rows[3..]).is_empty());
    }
}
