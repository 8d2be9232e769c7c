//! The performance goals of the offset layer, evaluated on the rows.
//!
//! A goal is reported when the rows it needs exist. The goal of `rl` also needs a full run: the
//! peak of live bytes determines the pool, and in a shorter run the peak exceeds the average by
//! less, so the pool is tighter. If several rows count, the worst is reported with its name.

use super::WorkloadId;
use crate::contender::ContenderId;
use crate::report::{Goal, OffsetRow};
use crate::stats::mean;

/// Uniform rows with at most this many live objects fit in the processor's caches.
const FEW_LIVE: u64 = 20_000;

/// Returns every goal that `rows`, of a quick run or a full one, can decide.
pub(super) fn of(rows: &[OffsetRow], quick: bool) -> Vec<Goal> {
    let rows = OffsetRows(rows);
    let mut goals = Vec::new();
    rows.utilization(&mut goals);
    if !quick {
        rows.rl(&mut goals);
    }
    rows.time(&mut goals);
    rows.cached_space(&mut goals);
    rows.metadata(&mut goals);
    rows.models(&mut goals);
    goals
}

struct OffsetRows<'a>(&'a [OffsetRow]);

impl<'a> OffsetRows<'a> {
    fn of(
        &self,
        workload: WorkloadId,
        contender: ContenderId,
    ) -> impl Iterator<Item = &'a OffsetRow> {
        self.0.iter().filter(move |row| row.workload == workload && row.contender == contender)
    }

    fn cached(&self, workload: WorkloadId) -> impl Iterator<Item = &'a OffsetRow> {
        self.of(workload, ContenderId::KvmemCached)
    }

    fn ours(&self, workload: WorkloadId) -> impl Iterator<Item = &'a OffsetRow> {
        self.of(workload, ContenderId::Kvmem)
    }

    /// Pairs each of the library's rows of `workload` with the corresponding row of `other`.
    fn beside(
        &self,
        workload: WorkloadId,
        other: ContenderId,
    ) -> impl Iterator<Item = (&'a OffsetRow, &'a OffsetRow)> {
        self.ours(workload).filter_map(move |row| {
            let same = |theirs: &&OffsetRow| {
                theirs.variant == row.variant && theirs.size_bytes == row.size_bytes
            };
            Some((row, self.of(workload, other).find(same)?))
        })
    }

    fn utilization(&self, goals: &mut Vec<Goal>) {
        let gaps = self.ours(WorkloadId::Uniform).filter_map(|row| {
            let gap = (row.util_bound? - row.util_min?).abs();
            Some((gap, name(row)))
        });
        goals.extend(Goal::at_most("uniform: smallest utilization below the bound", gaps, 1e-6));
        for row in self.ours(WorkloadId::Random) {
            goals.extend(Goal::at_least(
                "random: mean utilization of three seeds",
                [(row.util_avg, None)],
                0.874,
            ));
        }
        for row in self.ours(WorkloadId::Paired) {
            goals.extend(Goal::at_least(
                "paired: mean utilization",
                [(row.util_avg, None)],
                0.9996,
            ));
            goals.extend(Goal::at_least(
                "paired: smallest utilization",
                [(row.util_min, None)],
                0.999,
            ));
        }
        for (workload, what, limit) in [
            (
                WorkloadId::Shift,
                "shift: one to two turnovers after, mean of the five ratios",
                0.905,
            ),
            (WorkloadId::Mix, "mix: mean of the seven distributions", 0.885),
        ] {
            let all: Vec<f64> = self.ours(workload).filter_map(|row| row.util_avg).collect();
            goals.extend(Goal::at_least(what, [(mean(&all), None)], limit));
        }
        let ahead = self.beside(WorkloadId::Mix, ContenderId::Binned).map(|(ours, theirs)| {
            (ours.util_avg.zip(theirs.util_avg).map(|(a, b)| a - b), name(ours))
        });
        goals.extend(Goal::at_least("mix: ahead of binned in every distribution", ahead, 0.0));
        for (ranges, limit) in [(2, 0.945), (4, 0.97)] {
            let variant = format!("ranges<={ranges}");
            let rows =
                self.ours(WorkloadId::Scatter).filter(|row| row.variant.as_ref() == Some(&variant));
            let what = format!("scatter: mean utilization with at most {ranges} ranges");
            goals.extend(Goal::at_least(&what, rows.map(|row| (row.util_avg, None)), limit));
        }
    }

    /// Adds the goals of the same loops with magazines: the magazines must not lose anything.
    fn cached_space(&self, goals: &mut Vec<Goal>) {
        let gaps = self.cached(WorkloadId::Uniform).filter_map(|row| {
            let gap = (row.util_bound? - row.util_min?).abs();
            Some((gap, name(row)))
        });
        goals.extend(Goal::at_most(
            "uniform, cached: smallest utilization below the bound",
            gaps,
            1e-6,
        ));
        for row in self.cached(WorkloadId::Random) {
            goals.extend(Goal::at_least(
                "random, cached: mean utilization of three seeds",
                [(row.util_avg, None)],
                0.874,
            ));
        }
        for row in self.cached(WorkloadId::Paired) {
            goals.extend(Goal::at_least(
                "paired, cached: mean utilization",
                [(row.util_avg, None)],
                0.9996,
            ));
            goals.extend(Goal::at_least(
                "paired, cached: smallest utilization",
                [(row.util_min, None)],
                0.999,
            ));
        }
        let ratios = self.cached(WorkloadId::Uniform).filter(|row| few(row)).filter_map(|row| {
            let null = self
                .of(WorkloadId::Uniform, ContenderId::Null)
                .find(|null| null.size_bytes == row.size_bytes)?;
            Some((row.ns_per_op? / null.ns_per_op?, name(row)))
        });
        goals.extend(Goal::at_most(
            "uniform, cached, up to 20,000 live: time over that of the loop alone",
            ratios,
            2.5,
        ));
    }

    fn rl(&self, goals: &mut Vec<Goal>) {
        let rates = self.ours(WorkloadId::Rl).filter_map(|row| Some((row.fail_rate?, name(row))));
        goals.extend(Goal::at_most("rl: share of payloads that fail at 0.95 live", rates, 1e-4));
    }

    fn time(&self, goals: &mut Vec<Goal>) {
        let ratios = |workload, other, keep: fn(bool) -> bool| {
            self.beside(workload, other).filter(move |(ours, _)| keep(few(ours))).filter_map(
                |(ours, theirs)| Some((ours.ns_per_op? / theirs.ns_per_op?, name(ours))),
            )
        };
        let uniform = WorkloadId::Uniform;
        let binned = ContenderId::Binned;
        goals.extend(Goal::at_most(
            "uniform, up to 20,000 live: time over that of binned",
            ratios(uniform, binned, |few| few),
            0.5,
        ));
        goals.extend(Goal::at_most(
            "uniform, more live: time over that of binned",
            ratios(uniform, binned, |few| !few),
            0.65,
        ));
        goals.extend(Goal::at_most(
            "uniform, up to 20,000 live: time over that of the loop alone",
            ratios(uniform, ContenderId::Null, |few| few),
            5.0,
        ));
        goals.extend(Goal::at_most(
            "paired: time over that of binned",
            ratios(WorkloadId::Paired, binned, |_| true),
            0.65,
        ));
        goals.extend(Goal::at_most(
            "random: time over that of binned",
            ratios(WorkloadId::Random, binned, |_| true),
            1.0,
        ));
    }

    fn metadata(&self, goals: &mut Vec<Goal>) {
        let packed = || {
            self.ours(WorkloadId::Metadata).filter(|row| row.variant.as_deref() == Some("packed"))
        };
        let bytes = packed().filter_map(|row| Some((row.metadata_bytes_per_live?, None)));
        goals.extend(Goal::at_most(
            "metadata: bytes for each of 1,000,000 live, handle included",
            bytes,
            40.0,
        ));
        let resident = packed().filter_map(|row| Some((row.resident_bytes? as f64, None)));
        goals.extend(Goal::at_most(
            "metadata: bytes resident in a fresh space of 1 TiB",
            resident,
            65_535.0,
        ));
    }

    /// Adds the goal that the models reproduce the published utilization.
    fn models(&self, goals: &mut Vec<Goal>) {
        let off = [WorkloadId::Uniform, WorkloadId::Random, WorkloadId::Paired]
            .into_iter()
            .flat_map(|workload| {
                [ContenderId::Binned, ContenderId::BinnedUnrounded].map(|id| (workload, id))
            })
            .flat_map(|(workload, id)| self.of(workload, id))
            .filter_map(|row| Some(((row.util_avg? - row.published_util_avg?).abs(), name(row))));
        goals.extend(Goal::at_most(
            "models: mean utilization off the published figure",
            off,
            0.002,
        ));
    }
}

fn few(row: &OffsetRow) -> bool {
    row.live.is_some_and(|live| live <= FEW_LIVE)
}

fn name(row: &OffsetRow) -> Option<String> {
    let form = row.variant.clone().or_else(|| row.size_bytes.map(|size| format!("{size} B")));
    form.map(|form| format!("{}, {form}", row.contender))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(
        workload: WorkloadId,
        contender: ContenderId,
        fill: impl Fn(&mut OffsetRow),
    ) -> OffsetRow {
        let mut row = OffsetRow::new(workload, contender);
        fill(&mut row);
        row
    }

    fn uniform(contender: ContenderId, size: u64, live: u64, ns: f64) -> OffsetRow {
        row(WorkloadId::Uniform, contender, |row| {
            row.size_bytes = Some(size);
            row.live = Some(live);
            row.ns_per_op = Some(ns);
        })
    }

    #[test]
    fn the_worst_row_of_the_right_kind_counts() {
        use ContenderId::{Binned, Kvmem};
        let rows = [
            uniform(Kvmem, 1, 10, 40.0),
            uniform(Binned, 1, 10, 100.0),
            uniform(Kvmem, 2, 10, 30.0),
            uniform(Binned, 2, 10, 50.0),
            uniform(Kvmem, 3, 1_000_000, 60.0),
            uniform(Binned, 3, 1_000_000, 100.0),
        ];
        let goals = of(&rows, false);
        assert_eq!(goals.len(), 2);
        assert_eq!((goals[0].value, goals[0].met()), (0.6, false));
        assert_eq!(goals[0].at.as_deref(), Some("kvmem, 2 B"));
        assert_eq!((goals[1].value, goals[1].met()), (0.6, true));
    }

    #[test]
    fn means_need_every_row_and_limits_are_inclusive() {
        let shift =
            |util| row(WorkloadId::Shift, ContenderId::Kvmem, |row| row.util_avg = Some(util));
        let goals = of(&[shift(0.9), shift(0.91)], false);
        assert_eq!(goals.len(), 1);
        assert!(goals[0].met(), "{goals:?}");
        assert!(of(&[], false).is_empty());
    }
}
