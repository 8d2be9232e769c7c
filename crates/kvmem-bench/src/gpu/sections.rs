//! *Sections*: tables and plots of registering and of copies.

use kvmem_report::Scale;

use super::{CopyOrder, GpuPolicy, GpuRow, GpuScenario};
use crate::suite::columns::{decimal, distinct, side_by_side};
use crate::suite::{Section, bars};

/// Returns the sections of a report.
pub(super) fn of(rows: &[GpuRow]) -> Vec<Section> {
    let of = |scenario| rows.iter().filter(move |row| row.scenario == scenario);
    let failed = rows.iter().filter_map(|row| {
        let reason = row.failed.as_ref()?;
        Some(format!("{}, {}: {reason}", memory(row), setting(row)))
    });
    let failed = distinct(failed);
    let failed = (!failed.is_empty()).then(|| Section::of_note("failed", failed.join("\n")));
    [
        registering(&of(GpuScenario::Register).collect::<Vec<_>>()),
        copies("copies to the GPU: GB/s", &of(GpuScenario::ToDevice).collect::<Vec<_>>()),
        copies("copies from the GPU: GB/s", &of(GpuScenario::FromDevice).collect::<Vec<_>>()),
    ]
    .into_iter()
    .chain(failed)
    .collect()
}

fn memory(row: &GpuRow) -> String {
    match (row.scenario, row.policy, row.resident) {
        (GpuScenario::Register, Some(GpuPolicy::Allocated), _) => row.memory.to_string(),
        (GpuScenario::Register, _, true) => format!("{}, resident", row.memory),
        (GpuScenario::Register, _, false) => format!("{}, untouched", row.memory),
        _ => row.memory.to_string(),
    }
}

/// Names the way in which a region is registered, or the blocks that are copied.
fn setting(row: &GpuRow) -> String {
    if let (Some(bytes), Some(order)) = (row.block_bytes, row.order) {
        return blocks(bytes, order);
    }
    match (row.policy, row.piece_bytes, row.threads, row.contexts) {
        (_, Some(piece), Some(threads), Some(contexts)) => {
            let own = if contexts > 1 { ", own contexts" } else { "" };
            format!("{} MiB × {threads}{own}", piece >> 20)
        }
        (Some(policy), ..) => policy.to_string(),
        _ => String::new(),
    }
}

fn blocks(bytes: u64, order: CopyOrder) -> String {
    format!("{bytes} {order}")
}

/// Formats milliseconds for each GiB.
fn ms(seconds: Option<f64>) -> String {
    decimal(seconds.map(|seconds| seconds * 1e3), 1)
}

fn registering(rows: &[&GpuRow]) -> Section {
    let lines = |row: &GpuRow| format!("{}: {}", memory(row), setting(row));
    let columns = [((), ["register".to_owned(), "unregister".to_owned()])];
    let cells = |row: &GpuRow| [ms(row.ready_s_per_gib), ms(row.back_s_per_gib)];
    let table = side_by_side(rows, columns, lines, |_| (), cells);
    let plot = |title, figure: fn(&GpuRow) -> Option<f64>| {
        let names = distinct(rows.iter().map(|row| setting(row)));
        let scale = (title, "ms for a GiB", Scale::Log);
        bars(scale, names, rows, memory, setting, figure)
    };
    Section::new("registering: ms for each GiB, by the size of the pieces and the threads")
        .bars(plot("Register, less is better", |row| Some(row.ready_s_per_gib? * 1e3)))
        .bars(plot("Unregister, less is better", |row| Some(row.back_s_per_gib? * 1e3)))
        .table(table)
}

fn copies(heading: &str, rows: &[&GpuRow]) -> Section {
    let columns = distinct(rows.iter().map(|row| setting(row)));
    let columns = columns.into_iter().map(|name| (name.clone(), [name]));
    let cells = |row: &GpuRow| [decimal(row.gb_per_s, 2)];
    let table = side_by_side(rows, columns, memory, setting, cells);
    let names = distinct(rows.iter().map(|row| setting(row)));
    let scale = ("Copies, more is better", "GB/s", Scale::Linear);
    let plot = bars(scale, names, rows, memory, setting, |row| row.gb_per_s);
    Section::new(heading).bars(plot).table(table)
}
