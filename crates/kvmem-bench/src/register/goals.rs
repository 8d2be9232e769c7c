//! *Goals* of the register layer, evaluated on the rows.

use super::cell::Cell;
use super::{Pages, RegisterContenderId, RegisterRow};
use crate::suite::{Figure, GoalList, ratios};

use RegisterContenderId::{Auto, KvmemParallel, KvmemSequential, Parallel, Sequential};

/// The largest number of contexts, with which parallel registration can gain or lose most.
const MANY: u32 = 8;

/// Adds every goal that `rows` and the time of planning can decide.
pub(super) fn add(rows: &[RegisterRow], plan_ms: Option<f64>, goals: &mut GoalList) {
    for (simulated, place) in [(false, "io_uring"), (true, "simulated")] {
        let here = move |row: &RegisterRow| row.backend.is_simulated() == simulated;
        for (others, ids) in [
            ("the better of sequential and parallel", &[Sequential, Parallel][..]),
            ("the best of all four", &[Sequential, Parallel, KvmemSequential, KvmemParallel]),
        ] {
            let name = format!("auto, {place}: total over that of {others}");
            goals.at_most(name, 1.1, auto_over_best(rows, ids, here));
        }
    }
    for (pages, limit) in [(Pages::Thp, 0.5), (Pages::Base, 0.9)] {
        let cell = move |row: &RegisterRow| {
            row.pages == Some(pages) && !row.resident && row.contexts == MANY
        };
        goals.at_most(
            format!("auto, {pages}, not resident, {MANY} contexts: total over that of sequential"),
            limit,
            auto_over_best(rows, &[Sequential], cell),
        );
    }
    // One context leaves nothing to do in parallel. A deregistration of less than a millisecond
    // depends on the number of keys, not on the order in which they are given back.
    let give_back = ratios(
        rows,
        |row| row.policy == Auto && row.contexts > 1,
        |auto, row| {
            row.policy == Sequential && row.unregister_s >= 1e-3 && Cell::of(row) == Cell::of(auto)
        },
        |row| Some(row.unregister_s),
        |row| Some(Cell::of(row).to_string()),
    );
    goals.at_most(
        "auto, several contexts: time to give back over that of sequential, where that is a \
         millisecond",
        1.0,
        give_back,
    );
    let planning = plan_ms.map(|ms| (ms, None));
    goals.at_most("plan: milliseconds for 1 TiB and 8 registrars", 1.0, planning);
}

/// Divides the total of `auto` in each cell that is `wanted` by the smallest total of `ids` in that
/// cell, if all of them have a row.
fn auto_over_best(
    rows: &[RegisterRow],
    ids: &[RegisterContenderId],
    wanted: impl Fn(&RegisterRow) -> bool,
) -> impl Iterator<Item = Figure> {
    let autos = rows.iter().filter(move |row| row.policy == Auto && wanted(row));
    autos.filter_map(move |auto| {
        let cell = Cell::of(auto);
        let total = |id: &RegisterContenderId| {
            let mut others = rows.iter().filter(|row| row.policy == *id);
            others.find(|row| Cell::of(row) == cell).map(|row| row.total_s)
        };
        let totals: Option<Vec<f64>> = ids.iter().map(total).collect();
        let best = totals?.into_iter().min_by(f64::total_cmp)?;
        Some((auto.total_s / best, Some(cell.to_string())))
    })
}

#[cfg(test)]
mod tests {
    use super::super::Backend;
    use super::*;
    use crate::suite::Goal;

    fn of(rows: &[RegisterRow], plan_ms: Option<f64>) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, plan_ms, goals))
    }

    fn row(
        backend: Backend,
        contexts: u32,
        resident: bool,
        policy: RegisterContenderId,
        total_s: f64,
    ) -> RegisterRow {
        RegisterRow {
            backend,
            region_bytes: 1 << 30,
            contexts,
            pages: (!backend.is_simulated()).then_some(Pages::Thp),
            resident,
            policy,
            chosen: "sequential".to_owned(),
            populate_s: 0.0,
            register_s: total_s * 0.75,
            unregister_s: total_s * 0.25,
            total_s,
            calibration_sequential_gib_per_s: None,
            calibration_parallel_gib_per_s: None,
            runs: 5,
        }
    }

    fn cell(backend: Backend, contexts: u32, resident: bool, totals: [f64; 5]) -> Vec<RegisterRow> {
        let rows = RegisterContenderId::ALL.into_iter().zip(totals);
        rows.map(|(policy, total)| row(backend, contexts, resident, policy, total)).collect()
    }

    #[test]
    fn auto_is_compared_with_the_best_of_its_cell_and_the_worst_cell_counts() {
        let rows = [
            cell(Backend::IoUring, 8, true, [8.0, 4.0, 8.0, 4.0, 4.0]),
            cell(Backend::IoUring, 8, false, [20.0, 40.0, 20.0, 5.0, 10.0]),
            cell(Backend::IoUring, 1, true, [1.0, 1.0, 1.0, 1.0, 1.05]),
            cell(Backend::ParallelLoses, 8, true, [30.0, 81.0, 30.0, 81.0, 36.0]),
        ]
        .concat();
        let goals = of(&rows, Some(0.25));
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(
            found,
            [
                (1.05, true), // io_uring, better of two: one context
                (2.0, false), // best of all four: not resident
                (1.2, false), // simulated
                (1.2, false), // simulated, all four
                (0.5, true),  // not resident, THP
                (1.2, false), // giving back: simulated
                (0.25, true), // planning
            ]
        );
        assert_eq!(goals[1].at.as_deref(), Some("io_uring, 1 GiB thp, not resident, 8 contexts"));
        assert_eq!(
            goals[5].at.as_deref(),
            Some("simulated-parallel-loses, 1 GiB, resident, 8 contexts")
        );
    }

    #[test]
    fn no_goal_without_its_rows() {
        assert!(of(&[], None).is_empty());
        let lonely = row(Backend::IoUring, 8, false, Auto, 1.0);
        assert!(of(&[lonely], None).is_empty());
    }
}
