//! *Goals* of the arena layer, evaluated on the rows.

use super::{ArenaContenderId, ArenaRow, Op, Pages};
use crate::suite::{Figure, GoalList, ratios};

use ArenaContenderId::{Kvmem, KvmemAuto, MapPopulate, PublishedArena};

/// Adds every goal that `rows` and the bytes resident after mapping 1 TiB can decide.
pub(super) fn add(rows: &[ArenaRow], mapped_resident_bytes: Option<u64>, goals: &mut GoalList) {
    for (name, threads, limit) in [
        ("bump, one thread: time over that of published-arena", 1, 0.6),
        ("bump, two threads: time over that of published-arena", 2, 0.7),
    ] {
        let ours = |row: &ArenaRow| is(row, Op::Bump, Kvmem) && row.threads == threads;
        let published = |ours: &ArenaRow, row: &ArenaRow| {
            is(row, Op::Bump, PublishedArena)
                && (row.threads, row.size_bytes) == (ours.threads, ours.size_bytes)
        };
        goals.at_most(name, limit, ratios(rows, ours, published, |row| row.ns_per_op, size));
    }
    let full = |row: &ArenaRow| is(row, Op::BumpFull, Kvmem);
    let bump = |full: &ArenaRow, row: &ArenaRow| {
        is(row, Op::Bump, Kvmem) && row.threads == 1 && row.size_bytes == full.size_bytes
    };
    let full_over_bump = ratios(rows, full, bump, |row| row.ns_per_op, size);
    goals.at_most("bump-full: time over that of a call that succeeds", 1.0, full_over_bump);
    let two =
        |row: &ArenaRow| (row.contender, row.threads, row.pages) == (Kvmem, 2, Some(Pages::Thp));
    goals.at_least(
        "populate, THP, two threads: rate over that of map-populate",
        1.7,
        rate_over_populate(rows, two),
    );
    goals.at_least(
        "populate, threads chosen: rate over that of map-populate",
        1.0,
        rate_over_populate(rows, |row| row.contender == KvmemAuto),
    );
    let shared = |row: &ArenaRow| row.contender == KvmemAuto && row.pages == Some(Pages::Shared);
    goals.at_least(
        "populate, shared memory: rate over that of map-populate",
        4.0,
        rate_over_populate(rows, shared),
    );
    let map = rows.iter().filter(|row| row.op == Op::Map);
    let map = map.filter_map(|row| Some((row.ns_per_op? / 1e6, None)));
    goals.at_most("map: milliseconds for 1 TiB, untouched", 5.0, map);
    let resident = mapped_resident_bytes.map(|bytes| (bytes as f64, None));
    let under_a_mebibyte = ((1 << 20) - 1) as f64;
    goals.at_most("map: bytes resident after 1 TiB, untouched", under_a_mebibyte, resident);
}

fn is(row: &ArenaRow, op: Op, contender: ArenaContenderId) -> bool {
    (row.op, row.contender) == (op, contender)
}

fn rate_over_populate(
    rows: &[ArenaRow],
    ours: impl Fn(&ArenaRow) -> bool,
) -> impl Iterator<Item = Figure> {
    ratios(
        rows,
        move |row| row.op == Op::Populate && ours(row),
        |ours, row| is(row, Op::Populate, MapPopulate) && row.pages == ours.pages,
        |row| row.gib_per_s,
        |row| row.pages.map(|pages| format!("{pages}, {} thread(s)", row.threads)),
    )
}

fn size(row: &ArenaRow) -> Option<String> {
    Some(format!("{} B", row.size_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;

    fn of(rows: &[ArenaRow], mapped_resident_bytes: Option<u64>) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, mapped_resident_bytes, goals))
    }

    fn bump(
        op: Op,
        contender: ArenaContenderId,
        threads: u32,
        size_bytes: u64,
        ns: f64,
    ) -> ArenaRow {
        ArenaRow {
            op,
            pages: None,
            threads,
            size_bytes,
            contender,
            ns_per_op: Some(ns),
            gib_per_s: None,
        }
    }

    fn populate(contender: ArenaContenderId, pages: Pages, threads: u32, rate: f64) -> ArenaRow {
        ArenaRow {
            op: Op::Populate,
            pages: Some(pages),
            threads,
            size_bytes: 1 << 30,
            contender,
            ns_per_op: None,
            gib_per_s: Some(rate),
        }
    }

    #[test]
    fn the_worst_size_counts_and_threads_are_not_mixed() {
        let rows = [
            bump(Op::Bump, Kvmem, 1, 64, 5.0),
            bump(Op::Bump, PublishedArena, 1, 64, 10.0),
            bump(Op::Bump, Kvmem, 1, 4096, 7.0),
            bump(Op::Bump, PublishedArena, 1, 4096, 10.0),
            bump(Op::Bump, Kvmem, 2, 64, 20.0),
            bump(Op::Bump, PublishedArena, 2, 64, 40.0),
            bump(Op::BumpFull, Kvmem, 1, 64, 5.0),
        ];
        let goals = of(&rows, None);
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(0.7, false), (0.5, true), (1.0, true)]);
        assert_eq!(goals[0].at.as_deref(), Some("4096 B"));
    }

    #[test]
    fn rates_are_compared_within_a_kind_of_pages() {
        let rows = [
            populate(Kvmem, Pages::Thp, 2, 8.0),
            populate(Kvmem, Pages::Thp, 4, 1.0),
            populate(KvmemAuto, Pages::Thp, 2, 4.0),
            populate(MapPopulate, Pages::Thp, 1, 4.0),
            populate(Kvmem, Pages::Base, 2, 1.0),
            populate(KvmemAuto, Pages::Base, 1, 0.9),
            populate(MapPopulate, Pages::Base, 1, 1.0),
        ];
        let goals = of(&rows, Some(1 << 20));
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(2.0, true), (0.9, false), ((1 << 20) as f64, false)]);
        assert_eq!(goals[1].at.as_deref(), Some("base, 1 thread(s)"));
    }
}
