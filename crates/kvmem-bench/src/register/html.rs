//! The report as a chapter of a page: the totals for each backend and region size, cells from top
//! to bottom.

use kvmem_report::{Chapter, Scale, Section};

use super::plan::{Cell, size};
use super::table::{side_by_side, title};
use super::{Backend, RegisterContenderId, RegisterReport, RegisterRow};
use crate::html::{Draw, bars, head, section, tail};

impl Draw for RegisterReport {
    fn chapter(&self) -> Chapter {
        let how = format!("{} or more round(s)", self.reps);
        let mut chapter =
            head(&self.suite, &self.version, self.quick, &how, self.seconds, &self.machine);
        for backend in Backend::ALL {
            let rows: Vec<&RegisterRow> =
                self.rows.iter().filter(|row| row.backend == backend).collect();
            let unit = if backend.is_simulated() { "simulated seconds" } else { "seconds" };
            let plots = rows.chunk_by(|a, b| a.region_bytes == b.region_bytes).map(|rows| {
                let bytes = size(rows[0].region_bytes);
                let about =
                    format!("{bytes}: until all can use it and it is given back, less is better");
                let policy = |row: &RegisterRow| row.policy.to_string();
                bars(
                    (&about, unit, Scale::Log),
                    RegisterContenderId::ALL.map(|id| id.to_string()),
                    rows,
                    group,
                    policy,
                    |row| Some(row.total_s),
                )
            });
            chapter =
                chapter.section(section(&title(backend), plots).table(side_by_side(&rows).into()));
        }
        if let Some(ms) = self.plan_ms {
            let planned = format!("Planning 1 TiB for 8 registrars: {ms:.3} ms");
            chapter = chapter.section(Section::new("plan").text(planned));
        }
        let skipped = self.skipped.iter().map(|skipped| {
            let bytes =
                skipped.region_bytes.map_or_else(String::new, |bytes| format!(", {}", size(bytes)));
            let pages = skipped.pages.map_or_else(String::new, |pages| format!(" {pages}"));
            let contexts = skipped
                .contexts
                .map_or_else(String::new, |contexts| format!(", {contexts} context(s)"));
            format!("{}{bytes}{pages}{contexts}: {}", skipped.backend, skipped.reason)
        });
        tail(chapter, skipped, &self.goals)
    }
}

/// Returns the name of a row's cell without the backend, which the heading names.
fn group(row: &RegisterRow) -> String {
    let name = Cell::of(row).to_string();
    name.split_once(", ").map_or(name.clone(), |(_, rest)| rest.to_owned())
}
