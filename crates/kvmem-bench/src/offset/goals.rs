//! *Goals* of the offset layer, evaluated on the rows.
//!
//! The goal of `rl` also needs a full run: the peak of live bytes determines the pool, and in a
//! shorter run the peak exceeds the average by less, so the pool is tighter.

use super::{OffsetRow, WorkloadId};
use crate::contender::ContenderId;
use crate::stats::mean;
use crate::suite::{Figure, FigureOf, GoalList, ratios};

use ContenderId::{BestFit, Binned, BinnedUnrounded, Kvmem, KvmemCached, Null};
use WorkloadId::{
    Churn, Impossible, Metadata, Mix, Pair, Paired, Random, Rl, Scatter, Shift, Uniform,
};

/// Uniform rows with at most this many live objects fit in the processor's caches.
const FEW_LIVE: u64 = 20_000;

/// Adds every goal that `rows`, of a quick run or a full one, can decide.
pub(super) fn add(rows: &[OffsetRow], quick: bool, goals: &mut GoalList) {
    let rows = OffsetRows(rows);
    // The magazines must not lose anything: the same limits hold with them.
    rows.utilization(Kvmem, "", goals);
    rows.distributions(goals);
    if !quick {
        let rates = rows.of(Rl, Kvmem).filter_map(|row| Some((row.fail_rate?, name(row))));
        goals.at_most("rl: share of payloads that fail at 0.95 live", 1e-4, rates);
    }
    rows.time(goals);
    rows.utilization(KvmemCached, ", cached", goals);
    goals.at_most(
        "uniform, cached, up to 20,000 live: time over that of the loop alone",
        2.5,
        rows.time_over(Uniform, KvmemCached, Null, few),
    );
    rows.metadata(goals);
    rows.models(goals);
}

/// Returns whether a row counts for a goal.
type Counts = fn(&OffsetRow) -> bool;

struct OffsetRows<'a>(&'a [OffsetRow]);

impl<'a> OffsetRows<'a> {
    fn of(
        &self,
        workload: WorkloadId,
        contender: ContenderId,
    ) -> impl Iterator<Item = &'a OffsetRow> {
        self.0.iter().filter(move |row| (row.workload, row.contender) == (workload, contender))
    }

    /// Adds the goals for the utilization of the published workloads.
    fn utilization(&self, ours: ContenderId, suffix: &str, goals: &mut GoalList) {
        let gaps = self.of(Uniform, ours).filter_map(|row| {
            let gap = (row.util_bound? - row.util_min?).abs();
            Some((gap, name(row)))
        });
        goals.at_most(format!("uniform{suffix}: smallest utilization below the bound"), 1e-6, gaps);
        let limits: [(_, _, _, FigureOf<OffsetRow>); 3] = [
            (Random, "mean utilization of three seeds", 0.874, |row| row.util_avg),
            (Paired, "mean utilization", 0.9996, |row| row.util_avg),
            (Paired, "smallest utilization", 0.999, |row| row.util_min),
        ];
        for (workload, what, limit, figure) in limits {
            let figures = self.of(workload, ours).filter_map(|row| Some((figure(row)?, None)));
            goals.at_least(format!("{workload}{suffix}: {what}"), limit, figures);
        }
    }

    /// Adds the goals for the utilization of other distributions of sizes.
    fn distributions(&self, goals: &mut GoalList) {
        for (workload, name, limit) in [
            (Shift, "shift: one to two turnovers after, mean of the five ratios", 0.905),
            (Mix, "mix: mean of the seven distributions", 0.885),
        ] {
            let all: Vec<f64> = self.of(workload, Kvmem).filter_map(|row| row.util_avg).collect();
            goals.at_least(name, limit, mean(&all).map(|mean| (mean, None)));
        }
        let ahead = self.of(Mix, Kvmem).filter_map(|ours| {
            let theirs = self.of(Mix, Binned).find(|row| row.variant == ours.variant)?;
            Some((ours.util_avg? - theirs.util_avg?, name(ours)))
        });
        goals.at_least("mix: ahead of binned in every distribution", 0.0, ahead);
        for (ranges, limit) in [(2, 0.945), (4, 0.97)] {
            let variant = format!("ranges<={ranges}");
            let rows = self.of(Scatter, Kvmem).filter(|row| row.variant.as_ref() == Some(&variant));
            goals.at_least(
                format!("scatter: mean utilization with at most {ranges} ranges"),
                limit,
                rows.filter_map(|row| Some((row.util_avg?, None))),
            );
        }
    }

    /// Divides the time of `ours` by that of `theirs` in each row of `workload` that `counts`.
    fn time_over(
        &self,
        workload: WorkloadId,
        ours: ContenderId,
        theirs: ContenderId,
        counts: Counts,
    ) -> impl Iterator<Item = Figure> {
        ratios(
            self.0,
            move |row| (row.workload, row.contender) == (workload, ours) && counts(row),
            move |ours, row| {
                (row.workload, row.contender) == (workload, theirs)
                    && (&row.variant, row.size_bytes) == (&ours.variant, ours.size_bytes)
            },
            |row| row.ns_per_op,
            name,
        )
    }

    fn time(&self, goals: &mut GoalList) {
        let many: Counts = |row| !few(row);
        let limits: [(_, _, _, Counts, _); 9] = [
            ("uniform, up to 20,000 live: time over that of binned", Uniform, Binned, few, 0.5),
            ("uniform, more live: time over that of binned", Uniform, Binned, many, 0.5),
            (
                "uniform, up to 20,000 live: time over that of the loop alone",
                Uniform,
                Null,
                few,
                5.0,
            ),
            ("paired: time over that of binned", Paired, Binned, all, 0.5),
            ("random: time over that of binned", Random, Binned, all, 0.8),
            ("mix: time over that of binned, worst distribution", Mix, Binned, all, 1.0),
            ("scatter: time over that of best fit", Scatter, BestFit, all, 0.3),
            ("churn: time over that of binned", Churn, Binned, all, 0.8),
            ("pair: time over that of binned", Pair, Binned, all, 0.8),
        ];
        for (name, workload, other, counts, limit) in limits {
            goals.at_most(name, limit, self.time_over(workload, Kvmem, other, counts));
        }
        let mixes: Vec<f64> =
            self.time_over(Mix, Kvmem, Binned, all).map(|(ratio, _)| ratio).collect();
        let mean = mean(&mixes).map(|mean| (mean, None));
        goals.at_most("mix: time over that of binned, mean of the seven distributions", 0.9, mean);
        let hopeless = self.of(Impossible, Kvmem).filter_map(|row| Some((row.ns_per_op?, None)));
        goals.at_most("impossible: nanoseconds per request", 3.0, hopeless);
    }

    fn metadata(&self, goals: &mut GoalList) {
        let packed =
            || self.of(Metadata, Kvmem).filter(|row| row.variant.as_deref() == Some("packed"));
        let bytes = packed().filter_map(|row| Some((row.metadata_bytes_per_live?, None)));
        goals.at_most("metadata: bytes for each of 1,000,000 live, handle included", 40.0, bytes);
        let resident = packed().filter_map(|row| Some((row.resident_bytes? as f64, None)));
        goals.at_most("metadata: bytes resident in a fresh space of 1 TiB", 65_535.0, resident);
    }

    /// Adds the goal that the models reproduce the published utilization.
    fn models(&self, goals: &mut GoalList) {
        let off = [Uniform, Random, Paired]
            .into_iter()
            .flat_map(|workload| [Binned, BinnedUnrounded].map(|id| (workload, id)))
            .flat_map(|(workload, id)| self.of(workload, id))
            .filter_map(|row| Some(((row.util_avg? - row.published_util_avg?).abs(), name(row))));
        goals.at_most("models: mean utilization off the published figure", 0.002, off);
    }
}

fn all(_: &OffsetRow) -> bool {
    true
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
    use crate::suite::Goal;

    fn of(rows: &[OffsetRow], quick: bool) -> Vec<Goal> {
        GoalList::filled(|goals| add(rows, quick, goals))
    }

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
        let rows = [
            uniform(Kvmem, 1, 10, 40.0),
            uniform(Binned, 1, 10, 100.0),
            uniform(Kvmem, 2, 10, 30.0),
            uniform(Binned, 2, 10, 50.0),
            uniform(Kvmem, 3, 1_000_000, 50.0),
            uniform(Binned, 3, 1_000_000, 100.0),
        ];
        let goals = of(&rows, false);
        assert_eq!(goals.len(), 2);
        assert_eq!((goals[0].value, goals[0].met()), (0.6, false));
        assert_eq!(goals[0].at.as_deref(), Some("kvmem, 2 B"));
        assert_eq!((goals[1].value, goals[1].met()), (0.5, true));
    }

    #[test]
    fn times_of_mixes_count_one_by_one_and_together() {
        let mix = |contender, name: &str, ns| {
            row(WorkloadId::Mix, contender, |row| {
                row.variant = Some(name.to_owned());
                row.ns_per_op = Some(ns);
            })
        };
        let rows = [
            mix(Kvmem, "a", 11.0),
            mix(Binned, "a", 10.0),
            mix(Kvmem, "b", 5.0),
            mix(Binned, "b", 10.0),
        ];
        let found: Vec<_> = of(&rows, true).iter().map(|goal| (goal.value, goal.met())).collect();
        assert_eq!(found, [(1.1, false), (0.8, true)]);
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
