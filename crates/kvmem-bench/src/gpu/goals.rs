//! *Goals* of memory for a GPU, evaluated on the rows.

use super::{GpuPolicy, GpuRow, GpuScenario};
use crate::suite::{Figure, GoalList};

/// Adds every goal that the rows can decide.
pub(super) fn add(rows: &[GpuRow], goals: &mut GoalList) {
    goals.at_most(
        "auto: seconds to register and unregister over those of the best fixed setting",
        1.1,
        over_the_best(rows),
    );
    goals.at_least(
        "registered memory: bytes per second over those of pageable memory",
        1.0,
        over_pageable(rows),
    );
}

/// Returns the seconds of both ways, for each GiB.
fn total(row: &GpuRow) -> Option<f64> {
    Some(row.ready_s_per_gib? + row.back_s_per_gib?)
}

fn over_the_best(rows: &[GpuRow]) -> impl Iterator<Item = Figure> {
    let automatic = rows.iter().filter(|row| row.policy == Some(GpuPolicy::Auto));
    automatic.filter_map(move |row| {
        let fixed = rows.iter().filter(|other| {
            other.policy == Some(GpuPolicy::Fixed)
                && (other.memory, other.resident) == (row.memory, row.resident)
        });
        let best = fixed.filter_map(total).min_by(f64::total_cmp)?;
        let state = if row.resident { "resident" } else { "untouched" };
        Some((total(row)? / best, Some(format!("{}, {state}", row.memory))))
    })
}

fn over_pageable(rows: &[GpuRow]) -> impl Iterator<Item = Figure> {
    use super::GpuMemory::Pageable;

    let copies = rows.iter().filter(|row| row.scenario != GpuScenario::Register);
    copies.filter(|row| row.memory != Pageable).filter_map(move |row| {
        let same = |other: &&GpuRow| {
            other.memory == Pageable
                && (other.scenario, other.block_bytes, other.order)
                    == (row.scenario, row.block_bytes, row.order)
        };
        let pageable = rows.iter().find(same)?.gb_per_s?;
        Some((row.gb_per_s? / pageable, Some(format!("{}, {}", row.memory, row.scenario))))
    })
}

#[cfg(test)]
mod tests {
    use super::super::{CopyOrder, GpuMemory};
    use super::*;
    use crate::suite::Goal;

    fn registered(policy: GpuPolicy, ready: f64, back: f64) -> GpuRow {
        GpuRow {
            scenario: GpuScenario::Register,
            memory: GpuMemory::Thp,
            resident: true,
            policy: Some(policy),
            piece_bytes: None,
            threads: None,
            contexts: None,
            ready_s_per_gib: Some(ready),
            back_s_per_gib: Some(back),
            block_bytes: None,
            order: None,
            gb_per_s: None,
            failed: None,
        }
    }

    fn copied(memory: GpuMemory, gb_per_s: f64) -> GpuRow {
        GpuRow {
            scenario: GpuScenario::ToDevice,
            memory,
            policy: None,
            ready_s_per_gib: None,
            back_s_per_gib: None,
            block_bytes: Some(1 << 20),
            order: Some(CopyOrder::Scattered),
            gb_per_s: Some(gb_per_s),
            ..registered(GpuPolicy::Fixed, 0.0, 0.0)
        }
    }

    #[test]
    fn auto_is_compared_with_the_best_and_copies_with_those_of_pageable_memory() {
        let rows = [
            registered(GpuPolicy::Fixed, 2.0, 2.0),
            registered(GpuPolicy::Fixed, 1.0, 1.0),
            registered(GpuPolicy::Auto, 1.5, 1.0),
            copied(GpuMemory::Huge, 20.0),
            copied(GpuMemory::Base, 16.0),
            copied(GpuMemory::Pageable, 8.0),
        ];
        let goals: Vec<Goal> = GoalList::filled(|goals| add(&rows, goals));
        let found: Vec<_> =
            goals.iter().map(|goal| (goal.value, goal.met(), goal.at.as_deref())).collect();
        let wanted = [(1.25, false, Some("thp, resident")), (2.0, true, Some("base, to-device"))];
        assert_eq!(found, wanted);
        assert!(GoalList::filled(|goals| add(&[], goals)).is_empty());
    }
}
