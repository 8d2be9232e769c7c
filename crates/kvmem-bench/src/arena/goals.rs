//! The performance goals of the arena layer, evaluated on the rows.
//!
//! A goal is reported when the rows it needs exist. If several rows count, the worst is reported
//! with its name.

use super::{ArenaContenderId, ArenaRow, Op, Pages};
use crate::report::Goal;

/// Returns every goal that `rows` and the bytes resident after mapping 1 TiB can decide.
pub(super) fn of(rows: &[ArenaRow], mapped_resident_bytes: Option<u64>) -> Vec<Goal> {
    let rows = ArenaRows(rows);
    let mut goals = Vec::new();
    for (threads, limit, what) in [
        (1, 0.6, "bump, one thread: time over that of published-arena"),
        (2, 0.7, "bump, two threads: time over that of published-arena"),
    ] {
        goals.extend(Goal::at_most(what, rows.bump_over_published(threads), limit));
    }
    goals.extend(Goal::at_most(
        "bump-full: time over that of a call that succeeds",
        rows.full_over_bump(),
        1.0,
    ));
    let two = rows.rate_over_populate(|row| {
        row.contender == ArenaContenderId::Kvmem
            && row.threads == 2
            && row.pages == Some(Pages::Thp)
    });
    goals.extend(Goal::at_least(
        "populate, THP, two threads: rate over that of map-populate",
        two,
        1.7,
    ));
    let auto = rows.rate_over_populate(|row| row.contender == ArenaContenderId::KvmemAuto);
    goals.extend(Goal::at_least(
        "populate, threads chosen: rate over that of map-populate",
        auto,
        1.0,
    ));
    let shared = rows.rate_over_populate(|row| {
        row.contender == ArenaContenderId::KvmemAuto && row.pages == Some(Pages::Shared)
    });
    goals.extend(Goal::at_least(
        "populate, shared memory: rate over that of map-populate",
        shared,
        4.0,
    ));
    let map = rows.0.iter().filter(|row| row.op == Op::Map);
    let map = map.filter_map(|row| Some((row.ns_per_op? / 1e6, None)));
    goals.extend(Goal::at_most("map: milliseconds for 1 TiB, untouched", map, 5.0));
    let resident = mapped_resident_bytes.map(|bytes| (bytes as f64, None));
    goals.extend(Goal::at_most(
        "map: bytes resident after 1 TiB, untouched",
        resident,
        ((1 << 20) - 1) as f64,
    ));
    goals
}

struct ArenaRows<'a>(&'a [ArenaRow]);

impl<'a> ArenaRows<'a> {
    fn of(&self, op: Op, contender: ArenaContenderId) -> impl Iterator<Item = &'a ArenaRow> {
        self.0.iter().filter(move |row| row.op == op && row.contender == contender)
    }

    fn bump_over_published(&self, threads: u32) -> impl Iterator<Item = (f64, Option<String>)> {
        self.of(Op::Bump, ArenaContenderId::Kvmem)
            .filter(move |row| row.threads == threads)
            .filter_map(move |ours| {
                let same = |row: &&ArenaRow| {
                    row.threads == ours.threads && row.size_bytes == ours.size_bytes
                };
                let published = self.of(Op::Bump, ArenaContenderId::PublishedArena).find(same)?;
                Some((ours.ns_per_op? / published.ns_per_op?, size(ours)))
            })
    }

    fn full_over_bump(&self) -> impl Iterator<Item = (f64, Option<String>)> {
        self.of(Op::BumpFull, ArenaContenderId::Kvmem).filter_map(|full| {
            let same = |row: &&ArenaRow| row.threads == 1 && row.size_bytes == full.size_bytes;
            let bump = self.of(Op::Bump, ArenaContenderId::Kvmem).find(same)?;
            Some((full.ns_per_op? / bump.ns_per_op?, size(full)))
        })
    }

    fn rate_over_populate(
        &self,
        ours: fn(&ArenaRow) -> bool,
    ) -> impl Iterator<Item = (Option<f64>, Option<String>)> {
        self.0.iter().filter(move |row| row.op == Op::Populate && ours(row)).filter_map(|row| {
            let same = |other: &&ArenaRow| other.pages == row.pages;
            let plain = self.of(Op::Populate, ArenaContenderId::MapPopulate).find(same)?;
            let ratio = row.gib_per_s? / plain.gib_per_s?;
            Some((Some(ratio), Some(format!("{}, {} thread(s)", row.pages?, row.threads))))
        })
    }
}

fn size(row: &ArenaRow) -> Option<String> {
    Some(format!("{} B", row.size_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        use ArenaContenderId::{Kvmem, PublishedArena};
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
        use ArenaContenderId::{Kvmem, KvmemAuto, MapPopulate};
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
