//! *Plots*: utilization beside the published figures and the bound, times on a log scale.
//!
//! The 55 sizes of `uniform` form five families of eleven. A bar shows the smallest utilization of
//! each family; points show times over sizes.

use kvmem_report::{Bars, Lines, Scale};

use super::tables::{is_baseline, variant};
use super::{OffsetRow, WorkloadId};
use crate::contender::ContenderId;
use crate::loops::uniform::sizes;
use crate::suite::{Section, bars};

/// Adds the plots of a workload to its section.
pub(super) fn plotted(section: Section, workload: WorkloadId, rows: &[&OffsetRow]) -> Section {
    match workload {
        WorkloadId::Uniform => section.bars(families(rows)).lines(over_sizes(rows)),
        _ => plots(workload, rows).into_iter().fold(section, Section::bars),
    }
}

/// Returns the names of all contenders: each has one colour in the whole chapter.
fn names() -> [String; ContenderId::ALL.len()] {
    ContenderId::ALL.map(|id| id.to_string())
}

fn plots(workload: WorkloadId, rows: &[&OffsetRow]) -> Vec<Bars> {
    let named = |row: &OffsetRow| row.contender.to_string();
    let one = |about, figure: fn(&OffsetRow) -> Option<f64>| {
        bars(about, names(), rows, variant, named, figure)
    };
    match workload {
        WorkloadId::Metadata => vec![
            one(
                ("Metadata of each live allocation, less is better", "bytes", Scale::Linear),
                |row| row.metadata_bytes_per_live,
            ),
            one(
                ("Resident in a fresh space of 1 TiB, less is better", "bytes", Scale::Log),
                |row| row.resident_bytes.map(|bytes| bytes as f64),
            ),
        ],
        WorkloadId::Rl => vec![one(
            (
                "Live at the peak while at most 1 in 10,000 fails, more is better",
                "share of the pool",
                Scale::Linear,
            ),
            |row| row.live_fraction,
        )],
        WorkloadId::Shift => {
            vec![utilization("Utilization 1 to 2 turnovers after, more is better", rows)]
        }
        WorkloadId::Churn | WorkloadId::Pair | WorkloadId::Impossible => vec![times(rows)],
        _ => vec![utilization("Mean utilization, more is better", rows), times(rows)],
    }
}

/// Plots the mean utilization beside the published one.
fn utilization(about: &str, rows: &[&OffsetRow]) -> Bars {
    let mut bars = Bars::new(about, "share of the pool", Scale::Linear).series(names());
    for (row, published) in with_published(rows, |row| row.published_util_avg) {
        if let Some(ours) = row.util_avg {
            beside(bars.group(variant(row)), row, ours, published);
        }
        if let Some(bound) = row.util_bound {
            bars.group(variant(row)).bound(bound);
        }
    }
    bars
}

/// Plots the time beside the published one.
fn times(rows: &[&OffsetRow]) -> Bars {
    let mut bars = Bars::new("Time of a request, less is better", "ns", Scale::Log).series(names());
    for (row, published) in with_published(rows, |row| row.published_ns) {
        if let Some(ours) = row.ns_per_op {
            beside(bars.group(variant(row)), row, ours, published);
        }
    }
    bars
}

/// Adds a bar, and the published figure beside it.
fn beside(
    mut group: kvmem_report::bars::GroupMut<'_>,
    row: &OffsetRow,
    ours: f64,
    published: Option<f64>,
) {
    let name = row.contender.to_string();
    group.bar(name.clone(), ours);
    if let Some(published) = published {
        // Beside other contenders the figure is still the published allocator's.
        if is_model(row.contender) {
            group.variant(name, "published", published);
        } else {
            group.bar("binned, published", published);
        }
    }
}

/// Returns whether this is a form of the published allocator.
fn is_model(id: ContenderId) -> bool {
    matches!(id, ContenderId::Binned | ContenderId::BinnedUnrounded)
}

/// Pairs each row with the published figure of its own allocator. If no model takes part, the
/// library's rows get it.
fn with_published<'a>(
    rows: &[&'a OffsetRow],
    figure: fn(&OffsetRow) -> Option<f64>,
) -> impl Iterator<Item = (&'a OffsetRow, Option<f64>)> {
    let models = rows.iter().any(|row| is_model(row.contender));
    let of = move |row: &OffsetRow| {
        if models { is_model(row.contender) } else { row.contender == ContenderId::Kvmem }
    };
    rows.iter().map(move |&row| (row, figure(row).filter(|_| of(row))))
}

fn families(rows: &[&OffsetRow]) -> Bars {
    const NAMES: [&str; 5] =
        ["32 × 4ⁿ B", "17 B less", "17 B more", "nine tenths of it", "eleven tenths of it"];
    let sizes = sizes();
    let family = |row: &OffsetRow| {
        sizes
            .iter()
            .position(|size| Some(*size) == row.size_bytes)
            .map(|at| at * NAMES.len() / sizes.len())
    };
    let smallest = |values: &mut dyn Iterator<Item = f64>| values.min_by(f64::total_cmp);
    let mut bars = Bars::new(
        "Smallest utilization of eleven sizes each, more is better",
        "share of the pool",
        Scale::Linear,
    )
    .series(names());
    for (number, name) in NAMES.into_iter().enumerate() {
        for id in
            ContenderId::ALL.into_iter().filter(|id| !is_baseline(*id) && *id != ContenderId::Null)
        {
            let own: Vec<&OffsetRow> = rows
                .iter()
                .copied()
                .filter(|row| row.contender == id && family(row) == Some(number))
                .collect();
            // The library's smallest utilization, the others' mean.
            let ours = |row: &&OffsetRow| {
                if id == ContenderId::Kvmem { row.util_min } else { row.util_avg }
            };
            if let Some(found) = smallest(&mut own.iter().filter_map(ours)) {
                let published = with_published(rows, |row| row.published_util_avg)
                    .filter(|(row, _)| row.contender == id && family(row) == Some(number));
                beside(
                    bars.group(name),
                    own[0],
                    found,
                    smallest(&mut published.filter_map(|(_, figure)| figure)),
                );
            }
            if let Some(bound) = smallest(&mut own.iter().filter_map(|row| row.util_bound)) {
                bars.group(name).bound(bound);
            }
        }
    }
    bars
}

fn over_sizes(rows: &[&OffsetRow]) -> Lines {
    let mut lines = Lines::new(
        "Time of a request, less is better",
        ("bytes of a request", Scale::Log),
        ("ns", Scale::Log),
    )
    .points_only();
    for id in ContenderId::ALL {
        let own = || rows.iter().filter(move |row| row.contender == id);
        let at = |row: &OffsetRow| row.size_bytes.map(|size| size as f64);
        lines.line(id.name(), own().filter_map(|row| Some((at(row)?, row.ns_per_op?))));
        if is_model(id) {
            let published = own().filter_map(|row| Some((at(row)?, row.published_ns?)));
            lines.faint(format!("{id}, published"), published);
        }
    }
    lines
}
