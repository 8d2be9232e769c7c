//! The report as a chapter of a page: times on log scales, rates on linear ones.

use kvmem_report::{Chapter, Scale};

use super::table::{side_by_side, title};
use super::{ArenaContenderId, ArenaReport, ArenaRow, Op};
use crate::html::{Draw, bars, head, section, tail};

impl Draw for ArenaReport {
    fn chapter(&self) -> Chapter {
        let how = format!("{} and {} repetition(s)", self.bump_reps, self.page_reps);
        let mut chapter =
            head(&self.suite, &self.version, self.quick, &how, self.seconds, &self.machine);
        for op in Op::ALL {
            let rows: Vec<&ArenaRow> = self.rows.iter().filter(|row| row.op == op).collect();
            // The row of one mapping has no plot, only a table.
            let drawn = if op == Op::Map { None } else { Some(plot(op, &rows)) };
            let table = if op == Op::Map { self.mapped(&rows) } else { side_by_side(&rows) };
            chapter = chapter.section(section(title(op), drawn).table(table.into()));
        }
        let skipped = self.skipped.iter().map(|skipped| {
            let pages = skipped.pages.map_or_else(String::new, |pages| format!(", {pages}"));
            format!("{}{pages}: {}", skipped.op, skipped.reason)
        });
        tail(chapter, skipped, &self.goals)
    }
}

fn plot(op: Op, rows: &[&ArenaRow]) -> kvmem_report::Bars {
    let group = |row: &ArenaRow| match row.pages {
        Some(pages) => format!("{pages}, {} MiB", row.size_bytes >> 20),
        None => format!("{} B, {} thread(s)", row.size_bytes, row.threads),
    };
    let series = |row: &ArenaRow| match (row.contender, row.pages) {
        (ArenaContenderId::Kvmem, Some(_)) => format!("kvmem, {} thread(s)", row.threads),
        (contender, _) => contender.to_string(),
    };
    match op {
        Op::Populate | Op::Discard => {
            let scale = if op == Op::Populate { Scale::Linear } else { Scale::Log };
            let about = ("Speed, more is better", "GiB/s", scale);
            bars(about, None, rows, group, series, |row| row.gib_per_s)
        }
        _ => bars(
            ("Time of a call, less is better", "ns", Scale::Log),
            None,
            rows,
            group,
            series,
            |row| row.ns_per_op,
        ),
    }
}
