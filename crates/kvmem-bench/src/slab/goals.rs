//! The performance goals of the slab layer, evaluated on the rows.
//!
//! A goal is reported when the rows it needs exist. If several rows count, the worst is reported
//! with its name. Three threads are measured but are not part of a goal.

use super::{Pattern, SlabContenderId, SlabRow};
use crate::report::Goal;

/// Numbers of threads that are part of the goals.
const THREADS: [u32; 3] = [1, 2, 4];

/// Returns every goal that `rows` can decide.
pub(super) fn of(rows: &[SlabRow]) -> Vec<Goal> {
    let time = |row: &SlabRow| Some(row.ns_per_pair);
    let memory = |row: &SlabRow| row.rss_bytes.map(|bytes| bytes as f64);
    let found = [
        Goal::at_most(
            "random: time over that of mimalloc",
            over(rows, SlabContenderId::Mimalloc, time),
            0.8,
        ),
        Goal::at_most(
            "random: time over that of g-slice",
            over(rows, SlabContenderId::GSlice, time),
            0.5,
        ),
        Goal::at_most(
            "random: resident memory over that of mimalloc",
            over(rows, SlabContenderId::Mimalloc, memory),
            1.15,
        ),
    ];
    found.into_iter().flatten().collect()
}

/// Divides a figure of the library by that of `other`, row by row.
fn over(
    rows: &[SlabRow],
    other: SlabContenderId,
    figure: impl Fn(&SlabRow) -> Option<f64>,
) -> impl Iterator<Item = (f64, Option<String>)> {
    let of = |id| {
        rows.iter().filter(move |row| {
            row.contender == id && row.pattern == Pattern::Random && THREADS.contains(&row.threads)
        })
    };
    of(SlabContenderId::Kvmem).filter_map(move |ours| {
        let same = |row: &&SlabRow| {
            (row.max_block_bytes, row.threads) == (ours.max_block_bytes, ours.threads)
        };
        let ratio = figure(ours)? / figure(of(other).find(same)?)?;
        Some((ratio, Some(format!("≤ {} B, {} thread(s)", ours.max_block_bytes, ours.threads))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use SlabContenderId::{GSlice, Kvmem, Mimalloc};

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
