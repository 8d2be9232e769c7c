//! *Goals* of the disk tier, evaluated on the rows.

use super::index::IndexFigures;
use super::{TierContenderId, TierRow};
use crate::suite::{Figure, FigureOf, GoalList, ratios};

use TierContenderId::{Files, Kvmem, Plain};

/// Contenders that are programs of other people's code, by the names that the repository's command
/// gives them.
const FOYER: &str = "foyer";
const FIO: &str = "fio";
const ENGINES: [&str; 2] = ["lmcache", "hicache-file"];

/// Adds every goal that the rows and the figures of the index can decide.
pub(super) fn add(rows: &[TierRow], index: Option<&IndexFigures>, goals: &mut GoalList) {
    const MIB: u64 = 1 << 20;
    let speed: FigureOf<TierRow> = |row| Some(row.gb_per_s);
    let processor: FigureOf<TierRow> = |row| Some(row.cpu_s_per_gb);
    let over = |other, figure, lengths: fn(u64) -> bool| over(rows, other, figure, lengths);
    for limit in [Plain.name(), FIO] {
        goals.at_least(
            format!("kvmem, 1 MiB and more: bytes per second over those of {limit}"),
            0.95,
            over(limit, speed, |len| len >= MIB),
        );
        goals.at_least(
            format!("kvmem, less than 1 MiB: bytes per second over those of {limit}"),
            0.85,
            over(limit, speed, |len| len < MIB),
        );
        goals.at_most(
            format!("kvmem: processor time for a byte over that of {limit}"),
            1.3,
            over(limit, processor, |_| true),
        );
    }
    let one = |len| len == MIB;
    goals.at_least(
        "kvmem, 1 MiB: bytes per second over those of foyer",
        1.3,
        over(FOYER, speed, one),
    );
    goals.at_most(
        "kvmem, 1 MiB: processor time for a byte over that of foyer",
        0.5,
        over(FOYER, processor, one),
    );
    goals.at_least(
        "kvmem: bytes per second over those of files",
        2.0,
        over(Files.name(), speed, |_| true),
    );
    for engine in ENGINES {
        goals.at_least(
            format!("kvmem: bytes per second over those of {engine}"),
            3.0,
            over(engine, speed, |_| true),
        );
    }
    let Some(index) = index else { return };
    let figure = |value: f64| [(value, None)];
    goals.at_most("index: bytes for each value", 64.0, figure(index.bytes_per_entry));
    goals.at_most(
        format!("index: seconds to open {} values", index.entries),
        2.0,
        figure(index.open_s),
    );
    goals.at_least("file: utilization for pairs of objects", 0.999, figure(index.utilization));
}

/// Divides a figure of the tier by that of another contender, for values of these lengths.
fn over(
    rows: &[TierRow],
    other: &'static str,
    figure: FigureOf<TierRow>,
    lengths: fn(u64) -> bool,
) -> impl Iterator<Item = Figure> {
    ratios(
        rows,
        move |row| row.contender == Kvmem.name() && lengths(row.value_bytes),
        move |ours, row| {
            row.contender == other
                && (row.transfer, row.value_bytes) == (ours.transfer, ours.value_bytes)
        },
        figure,
        |row| Some(format!("{}, {} bytes", row.transfer, row.value_bytes)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Goal;
    use crate::tier::TierTransfer;

    fn row(
        transfer: TierTransfer,
        value_bytes: u64,
        contender: &str,
        (gb_per_s, cpu_s_per_gb): (f64, f64),
    ) -> TierRow {
        TierRow { transfer, value_bytes, contender: contender.to_owned(), gb_per_s, cpu_s_per_gb }
    }

    #[test]
    fn the_tier_is_compared_with_each_contender_and_the_worst_row_counts() {
        use TierTransfer::{Fetch, Store};
        let rows = [
            row(Store, 1 << 16, "kvmem", (0.9, 0.2)),
            row(Store, 1 << 16, "plain", (1.0, 0.1)),
            row(Fetch, 1 << 20, "kvmem", (2.0, 0.1)),
            row(Fetch, 1 << 20, "plain", (2.0, 0.1)),
            row(Fetch, 1 << 20, "fio", (1.6, 0.2)),
            row(Fetch, 1 << 16, "fio", (1.6, 0.2)),
            row(Fetch, 1 << 20, "foyer", (1.0, 0.4)),
            row(Store, 1 << 20, "kvmem", (1.8, 0.1)),
            row(Store, 1 << 20, "plain", (2.0, 0.1)),
            row(Store, 1 << 20, "hicache-file", (0.5, 1.0)),
        ];
        let index = IndexFigures {
            entries: 1000,
            bytes_per_entry: 65.0,
            open_s: 0.5,
            utilization: 0.9991,
            samples: 3,
        };
        let goals: Vec<Goal> = GoalList::filled(|goals| add(&rows, Some(&index), goals));
        let found: Vec<_> = goals.iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(
            found,
            [
                (0.9, false),   // 1 MiB over plain: the store
                (0.9, true),    // 64 KiB over plain
                (2.0, false),   // processor time: the store of 64 KiB
                (1.25, true),   // 1 MiB over fio
                (0.5, true),    // its processor time
                (2.0, true),    // foyer
                (0.25, true),   // its processor time
                (3.6, true),    // hicache-file
                (65.0, false),  // index
                (0.5, true),    // opening
                (0.9991, true), // utilization
            ]
        );
        assert_eq!(goals[0].at.as_deref(), Some("store, 1048576 bytes"));
        assert!(GoalList::filled(|goals| add(&[], None, goals)).is_empty());
    }
}
