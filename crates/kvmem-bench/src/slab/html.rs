//! The report as a chapter of a page: a plot for each pattern and size, numbers of threads from top
//! to bottom.

use kvmem_report::{Chapter, Scale};

use super::table::{side_by_side, title};
use super::{Pattern, SlabContenderId, SlabReport, SlabRow};
use crate::html::{Draw, bars, head, section, tail};

impl Draw for SlabReport {
    fn chapter(&self) -> Chapter {
        let how = format!("seed {}, {} repetition(s)", self.seed, self.reps);
        let mut chapter =
            head(&self.suite, &self.version, self.quick, &how, self.seconds, &self.machine);
        for pattern in Pattern::ALL {
            let rows: Vec<&SlabRow> =
                self.rows.iter().filter(|row| row.pattern == pattern).collect();
            let plots = |unit, scale, figure: fn(&SlabRow) -> Option<f64>| {
                by_size(&rows).into_iter().map(move |(bytes, rows)| {
                    let about = format!("Blocks of {bytes} B at most, less is better");
                    let group = |row: &SlabRow| format!("{} thread(s)", row.threads);
                    bars(
                        (&about, unit, scale),
                        SlabContenderId::ALL.map(|id| id.to_string()),
                        &rows,
                        group,
                        |row| row.contender.to_string(),
                        figure,
                    )
                })
            };
            let times =
                plots("ns per allocation and free", Scale::Log, |row| Some(row.ns_per_pair));
            let table = side_by_side(&rows, |row| Some(format!("{:.1}", row.ns_per_pair)));
            chapter = chapter.section(section(title(pattern), times).table(table.into()));
            if rows.iter().any(|row| row.rss_bytes.is_some()) {
                let mebibytes =
                    |row: &SlabRow| row.rss_bytes.map(|bytes| bytes as f64 / f64::from(1 << 20));
                let memory = plots("MiB resident", Scale::Linear, mebibytes);
                let table = side_by_side(&rows, |row| {
                    mebibytes(row).map(|mebibytes| format!("{mebibytes:.2}"))
                });
                let title = format!("{pattern}: MiB that became resident");
                chapter = chapter.section(section(&title, memory).table(table.into()));
            }
        }
        let skipped =
            self.skipped.iter().map(|skipped| format!("{}: {}", skipped.contender, skipped.reason));
        tail(chapter, skipped, &self.goals)
    }
}

/// Groups the rows by the size of blocks.
fn by_size<'a>(rows: &[&'a SlabRow]) -> Vec<(u32, Vec<&'a SlabRow>)> {
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.max_block_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let of = |size| rows.iter().copied().filter(|row| row.max_block_bytes == size).collect();
    sizes.into_iter().map(|size| (size, of(size))).collect()
}
