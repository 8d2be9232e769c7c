//! *Sections*: tables and plots with one line for each cell. A table shows the totals side by side,
//! and the details of `auto`.

use kvmem_report::Scale;

use super::cell::{Cell, size};
use super::{Backend, RegisterContenderId, RegisterRow};
use crate::suite::columns::{Columns, dash, decimal, distinct};
use crate::suite::{Section, bars};

/// Returns a section for each backend, and the time of planning.
pub(super) fn of(rows: &[RegisterRow], plan_ms: Option<f64>) -> Vec<Section> {
    let of = |backend: Backend| {
        let rows: Vec<&RegisterRow> = rows.iter().filter(|row| row.backend == backend).collect();
        let unit = if backend.is_simulated() { "simulated seconds" } else { "seconds" };
        let plots = rows.chunk_by(|a, b| a.region_bytes == b.region_bytes).map(|rows| {
            let bytes = size(rows[0].region_bytes);
            let about =
                format!("{bytes}: until all can use it and it is given back, less is better");
            bars(
                (&about, unit, Scale::Log),
                RegisterContenderId::ALL.map(|id| id.to_string()),
                rows,
                line,
                |row| row.policy.to_string(),
                |row| Some(row.total_s),
            )
        });
        plots.fold(Section::new(title(backend)), Section::bars).table(table(&rows))
    };
    let planned = plan_ms
        .map(|ms| Section::of_note("plan", format!("Planning 1 TiB for 8 registrars: {ms:.3} ms")));
    Backend::ALL.into_iter().map(of).chain(planned).collect()
}

fn title(backend: Backend) -> String {
    let what = match backend {
        Backend::IoUring => "seconds to populate, register and give back, rings as contexts",
        _ => "the same in simulated seconds",
    };
    format!("{backend}: {what}; then the parts of auto, and its calibration in GiB/s")
}

/// Returns the name of a row's cell without the backend, which the heading names.
fn line(row: &RegisterRow) -> String {
    let name = Cell::of(row).to_string();
    name.split_once(", ").map_or(name.clone(), |(_, rest)| rest.to_owned())
}

fn table(rows: &[&RegisterRow]) -> Columns {
    let mut present: Vec<RegisterContenderId> = rows.iter().map(|row| row.policy).collect();
    present.sort_unstable();
    present.dedup();
    let with_auto = present.contains(&RegisterContenderId::Auto);
    let parts = ["populate", "register", "give back", "chosen", "sequential", "parallel"];
    let head =
        [String::new()].into_iter().chain(present.iter().map(RegisterContenderId::to_string));
    let mut table =
        Columns::new(head.chain(parts.into_iter().filter(|_| with_auto).map(str::to_owned)));
    for name in distinct(rows.iter().map(|row| line(row))) {
        let find =
            |id: RegisterContenderId| rows.iter().find(|row| row.policy == id && line(row) == name);
        let totals = present.iter().map(|&id| seconds(find(id).map(|row| row.total_s)));
        let auto = find(RegisterContenderId::Auto);
        let parts = [
            seconds(auto.map(|row| row.populate_s)),
            seconds(auto.map(|row| row.register_s)),
            seconds(auto.map(|row| row.unregister_s)),
            auto.map_or_else(dash, |row| row.chosen.clone()),
            decimal(auto.and_then(|row| row.calibration_sequential_gib_per_s), 1),
            decimal(auto.and_then(|row| row.calibration_parallel_gib_per_s), 1),
        ];
        let cells = totals.chain(parts.into_iter().filter(|_| with_auto));
        table.push([name.clone()].into_iter().chain(cells));
    }
    table
}

fn seconds(value: Option<f64>) -> String {
    match value {
        Some(0.0) => "0".to_owned(),
        Some(value) if value < 1.0 => format!("{value:.5}"),
        Some(value) if value < 10.0 => format!("{value:.3}"),
        value => decimal(value, 1),
    }
}
