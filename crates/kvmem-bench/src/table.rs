//! The report as text.
//!
//! `uniform` has one line for each size with the contenders side by side; the other workloads have
//! one line for each row. A published figure stands beside the contender's if there is one,
//! otherwise a dash.

use std::fmt::{self, Display, Formatter};

use crate::columns::{Columns, count, goals, nanoseconds, strings};
use crate::contender::ContenderId;
use crate::offset::WorkloadId;
use crate::report::{OffsetReport, OffsetRow};

fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.4}"))
}

fn exact_share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.6}"))
}

impl Display for OffsetReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, seed {}, {} repetition(s), {:.0} s",
            self.version, self.suite, self.seed, self.reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        for workload in WorkloadId::ALL {
            let rows: Vec<&OffsetRow> =
                self.rows.iter().filter(|row| row.workload == workload).collect();
            if rows.is_empty() {
                continue;
            }
            writeln!(f, "\n{}", title(workload))?;
            if workload == WorkloadId::Uniform {
                for baselines in [false, true] {
                    if rows.iter().any(|row| is_baseline(row.contender) == baselines) {
                        let gap = if baselines { "\n" } else { "" };
                        write!(f, "{gap}{}", uniform(&rows, baselines))?;
                    }
                }
            } else {
                write!(f, "{}", section(workload, &rows))?;
            }
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

pub(crate) fn title(workload: WorkloadId) -> &'static str {
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
    }
}

pub(crate) fn section(workload: WorkloadId, rows: &[&OffsetRow]) -> Columns {
    match workload {
        WorkloadId::Metadata => metadata(rows),
        WorkloadId::Rl => rl(rows),
        WorkloadId::Shift => shift(rows),
        _ => mixed(rows),
    }
}

pub(crate) fn variant(row: &OffsetRow) -> String {
    row.variant.clone().unwrap_or_else(|| row.workload.to_string())
}

/// Returns whether the contender is a baseline that runs in few uniform rows and gets its own
/// table.
pub(crate) fn is_baseline(id: ContenderId) -> bool {
    matches!(id, ContenderId::OffsetAllocator | ContenderId::BestFit)
}

pub(crate) fn uniform(rows: &[&OffsetRow], baselines: bool) -> Columns {
    let rows = || rows.iter().filter(|row| is_baseline(row.contender) == baselines);
    let present: Vec<ContenderId> =
        ContenderId::ALL.into_iter().filter(|&id| rows().any(|row| row.contender == id)).collect();
    // One published column for each form of the published allocator is enough, unless the models
    // are absent.
    let is_model = |id| matches!(id, ContenderId::Binned | ContenderId::BinnedUnrounded);
    let all = !present.contains(&ContenderId::Binned);
    let with_published = |id| all || is_model(id);
    let mut head: Vec<String> = strings(["size", "live", "bound"]).into();
    for &id in &present {
        head.extend([id.to_string(), "ns".to_owned()]);
        if with_published(id) {
            head.extend(strings(["(publ.", "ns)"]));
        }
    }
    let mut columns = Columns::new(head);
    let mut sizes: Vec<u64> = rows().filter_map(|row| row.size_bytes).collect();
    sizes.dedup();
    for size in sizes {
        let of = |id| rows().find(|row| row.size_bytes == Some(size) && row.contender == id);
        let any = rows().find(|row| row.size_bytes == Some(size));
        let mut line = vec![
            count(Some(size)),
            count(any.and_then(|row| row.live)),
            exact_share(any.and_then(|row| row.util_bound)),
        ];
        for &id in &present {
            let row = of(id);
            let ours = id == ContenderId::Kvmem;
            line.push(if ours {
                exact_share(row.and_then(|row| row.util_min))
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
    let mut columns = Columns::new(strings([
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
    ]));
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
    let two =
        |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"));
    let mut columns = Columns::new(strings([
        "",
        "contender",
        "no failure",
        "≤ 1 in 10,000",
        "failed at 0.95",
        "(published)",
    ]));
    for row in rows {
        columns.push([
            variant(row),
            row.contender.to_string(),
            two(row.live_fraction_no_failure),
            two(row.live_fraction),
            row.fail_rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.4} %", rate * 100.0)),
            share(row.published_util_avg),
        ]);
    }
    columns
}

fn shift(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new(strings([
        "",
        "contender",
        "during",
        "min",
        "1–2 turnovers after",
        "10–20",
        "(published)",
    ]));
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

fn metadata(rows: &[&OffsetRow]) -> Columns {
    let mut columns = Columns::new(strings(["", "contender", "live", "bytes each", "resident"]));
    for row in rows {
        let each = row
            .metadata_bytes_per_live
            .map_or_else(|| "–".to_owned(), |bytes| format!("{bytes:.1}"));
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
