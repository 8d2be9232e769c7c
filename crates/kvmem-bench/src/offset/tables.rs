//! *Tables* of each workload.
//!
//! `uniform` has one line for each size with the contenders side by side; the other workloads have
//! one line for each row. A published figure stands beside the contender's if there is one,
//! otherwise a dash.

use super::{OffsetRow, WorkloadId};
use crate::contender::ContenderId;
use crate::suite::columns::{Columns, count, dash, decimal, distinct};

/// Formats a share of the pool.
fn share(value: Option<f64>) -> String {
    decimal(value, 4)
}

/// Formats whole nanoseconds.
fn nanoseconds(value: Option<f64>) -> String {
    decimal(value, 0)
}

pub(super) fn title(workload: WorkloadId) -> &'static str {
    match workload {
        WorkloadId::Metadata => {
            "metadata: bytes for each live allocation, handle included; bytes resident in a fresh \
             1 TiB space"
        }
        WorkloadId::Uniform => {
            "uniform: one size at a time. Utilization (kvmem: the smallest; others: the mean) and \
             ns per request;\n  in parentheses the published figure"
        }
        WorkloadId::Random => "random: 1 KiB to 64 MiB in 2 GiB. Utilization and ns per request",
        WorkloadId::Paired => {
            "paired: KV and index objects in 1 TiB. Utilization before each eviction, ns per \
             request"
        }
        WorkloadId::Rl => {
            "rl: highest share of the pool alive at the peak, and share of payloads failed at 0.95"
        }
        WorkloadId::Shift => {
            "shift: one size gives way to another. Utilization during and after the change"
        }
        WorkloadId::Mix => "mix: seven other distributions in 2 GiB. Utilization",
        WorkloadId::Scatter => "scatter: random, with several ranges for a request. Utilization",
        WorkloadId::Shards => {
            "shards: random and paired in a space with n shards, from one thread. Utilization and \
             ns per request"
        }
        WorkloadId::Churn => {
            "churn: a thousand ranges of sixteen sizes in 1 TiB. ns per exchange of one"
        }
        WorkloadId::Pair => "pair: one range of 4 KiB in 1 TiB. ns per allocation and free",
        WorkloadId::Impossible => "impossible: requests of a full space. ns per request",
    }
}

/// Returns the tables of a workload.
pub(super) fn of(workload: WorkloadId, rows: &[&OffsetRow]) -> Vec<Columns> {
    match workload {
        WorkloadId::Uniform => [false, true].map(|baselines| uniform(rows, baselines)).into(),
        WorkloadId::Metadata => vec![metadata(rows)],
        WorkloadId::Rl => vec![rl(rows)],
        WorkloadId::Shift => vec![shift(rows)],
        WorkloadId::Random
        | WorkloadId::Paired
        | WorkloadId::Mix
        | WorkloadId::Scatter
        | WorkloadId::Shards => vec![mixed(rows)],
        WorkloadId::Churn | WorkloadId::Pair | WorkloadId::Impossible => vec![time_only(rows)],
    }
}

pub(super) fn variant(row: &OffsetRow) -> String {
    row.variant.clone().unwrap_or_else(|| row.workload.to_string())
}

/// Returns whether the contender is a baseline that runs in few uniform rows and gets its own
/// table.
pub(super) fn is_baseline(id: ContenderId) -> bool {
    matches!(id, ContenderId::OffsetAllocator | ContenderId::BestFit)
}

fn uniform(rows: &[&OffsetRow], baselines: bool) -> Columns {
    let rows = || rows.iter().filter(|row| is_baseline(row.contender) == baselines);
    let present: Vec<ContenderId> =
        ContenderId::ALL.into_iter().filter(|&id| rows().any(|row| row.contender == id)).collect();
    // One published column for each form of the published allocator is enough, unless the models
    // are absent.
    let is_model = |id| matches!(id, ContenderId::Binned | ContenderId::BinnedUnrounded);
    let all = !present.contains(&ContenderId::Binned);
    let with_published = |id| all || is_model(id);
    let mut head: Vec<String> = ["size", "live", "bound"].map(str::to_owned).into();
    for &id in &present {
        head.extend([id.to_string(), "ns".to_owned()]);
        if with_published(id) {
            head.extend(["(publ.", "ns)"].map(str::to_owned));
        }
    }
    let mut columns = Columns::new(head);
    for size in distinct(rows().filter_map(|row| row.size_bytes)) {
        let of = |id| rows().find(|row| row.size_bytes == Some(size) && row.contender == id);
        let any = rows().find(|row| row.size_bytes == Some(size));
        let mut line = vec![
            count(Some(size)),
            count(any.and_then(|row| row.live)),
            decimal(any.and_then(|row| row.util_bound), 6),
        ];
        for &id in &present {
            let row = of(id);
            let ours = id == ContenderId::Kvmem;
            line.push(if ours {
                decimal(row.and_then(|row| row.util_min), 6)
            } else {
                share(row.and_then(|row| row.util_avg))
            });
            line.push(nanoseconds(row.and_then(|row| row.ns_per_op)));
            if with_published(id) {
                line.push(format!("({}", share(row.and_then(|row| row.published_util_avg))));
                line.push(format!("{})", nanoseconds(row.and_then(|row| row.published_ns))));
            }
        }
        columns.push(line);
    }
    columns
}

fn mixed(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new([
        "",
        "contender",
        "min",
        "p99",
        "p90",
        "p50",
        "max",
        "avg",
        "(publ. avg)",
        "ns",
        "(publ. ns)",
    ]);
    for row in rows {
        columns.push([
            variant(row),
            row.contender.to_string(),
            share(row.util_min),
            share(row.util_p99),
            share(row.util_p90),
            share(row.util_p50),
            share(row.util_max),
            share(row.util_avg),
            format!("({})", share(row.published_util_avg)),
            nanoseconds(row.ns_per_op),
            format!("({})", nanoseconds(row.published_ns)),
        ]);
    }
    columns
}

fn rl(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new([
        "",
        "contender",
        "no failure",
        "≤ 1 in 10,000",
        "failed at 0.95",
        "(published)",
    ]);
    for row in rows {
        columns.push([
            variant(row),
            row.contender.to_string(),
            decimal(row.live_fraction_no_failure, 2),
            decimal(row.live_fraction, 2),
            row.fail_rate.map_or_else(dash, |rate| format!("{:.4} %", rate * 100.0)),
            share(row.published_util_avg),
        ]);
    }
    columns
}

fn shift(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new([
        "",
        "contender",
        "during",
        "min",
        "1–2 turnovers after",
        "10–20",
        "(published)",
    ]);
    for row in rows {
        columns.push([
            variant(row),
            row.contender.to_string(),
            share(row.util_during),
            share(row.util_min),
            share(row.util_avg),
            share(row.util_late),
            share(row.published_util_avg),
        ]);
    }
    columns
}

fn time_only(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new(["", "contender", "live", "ns"]);
    for row in rows {
        columns.push([
            variant(row),
            row.contender.to_string(),
            count(row.live),
            decimal(row.ns_per_op, 1),
        ]);
    }
    columns
}

fn metadata(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new(["", "contender", "live", "bytes each", "resident"]);
    for row in rows {
        let each = decimal(row.metadata_bytes_per_live, 1);
        columns.push([
            variant(row),
            row.contender.to_string(),
            count(row.live),
            each,
            count(row.resident_bytes),
        ]);
    }
    columns
}
