//! The report as text.
//!
//! One line for each cell, with the totals side by side and the details of `auto`. A dash marks a
//! missing row.

use std::fmt::{self, Display, Formatter};

use super::plan::{Cell, size};
use super::{Backend, RegisterContenderId, RegisterReport, RegisterRow};
use crate::columns::{Columns, goals};

impl Display for RegisterReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, {} or more round(s), {:.0} s",
            self.version, self.suite, self.reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        for backend in Backend::ALL {
            let rows: Vec<&RegisterRow> =
                self.rows.iter().filter(|row| row.backend == backend).collect();
            if !rows.is_empty() {
                writeln!(f, "\n{}", title(backend))?;
                write!(f, "{}", side_by_side(&rows))?;
            }
        }
        if let Some(ms) = self.plan_ms {
            writeln!(f, "\nPlanning 1 TiB for 8 registrars: {ms:.3} ms")?;
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nNot measured")?;
            for skipped in &self.skipped {
                let bytes = skipped
                    .region_bytes
                    .map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
                let pages = skipped.pages.map_or_else(String::new, |pages| format!(" {pages}"));
                let contexts = skipped
                    .contexts
                    .map_or_else(String::new, |contexts| format!(", {contexts} context(s)"));
                writeln!(f, "  {}{bytes}{pages}{contexts}: {}", skipped.backend, skipped.reason)?;
            }
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

pub(super) fn title(backend: Backend) -> String {
    let what = match backend {
        Backend::IoUring => "seconds to populate, register and give back, rings as contexts",
        _ => "the same in simulated seconds",
    };
    format!("{backend}: {what}; then the parts of auto, and its calibration in GiB/s")
}

pub(super) fn side_by_side(rows: &[&RegisterRow]) -> Columns {
    let mut present: Vec<RegisterContenderId> = rows.iter().map(|row| row.policy).collect();
    present.sort_unstable();
    present.dedup();
    let with_auto = present.contains(&RegisterContenderId::Auto);
    let parts = ["populate", "register", "give back", "chosen", "sequential", "parallel"];
    let head =
        [String::new()].into_iter().chain(present.iter().map(RegisterContenderId::to_string));
    let mut table =
        Columns::new(head.chain(parts.into_iter().filter(|_| with_auto).map(str::to_owned)));
    let mut cells: Vec<Cell> = Vec::new();
    for row in rows {
        let cell = Cell::of(row);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    for cell in cells {
        let find = |id: RegisterContenderId| {
            rows.iter().find(|row| row.policy == id && Cell::of(row) == cell)
        };
        let totals = present.iter().map(|&id| seconds(find(id).map(|row| row.total_s)));
        let auto = find(RegisterContenderId::Auto);
        let parts = [
            seconds(auto.map(|row| row.populate_s)),
            seconds(auto.map(|row| row.register_s)),
            seconds(auto.map(|row| row.unregister_s)),
            auto.map_or_else(dash, |row| row.chosen.clone()),
            rate(auto.and_then(|row| row.calibration_sequential_gib_per_s)),
            rate(auto.and_then(|row| row.calibration_parallel_gib_per_s)),
        ];
        let name = cell.to_string();
        // The heading names the backend.
        let name = name.split_once(", ").map_or(name.as_str(), |(_, rest)| rest).to_owned();
        table.push([name].into_iter().chain(totals).chain(parts.into_iter().filter(|_| with_auto)));
    }
    table
}

fn dash() -> String {
    "–".to_owned()
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| match value {
        0.0 => "0".to_owned(),
        value if value < 1.0 => format!("{value:.5}"),
        value if value < 10.0 => format!("{value:.3}"),
        value => format!("{value:.1}"),
    })
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(dash, |value| format!("{value:.1}"))
}
