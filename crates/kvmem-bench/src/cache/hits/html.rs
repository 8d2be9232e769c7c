//! The report as a chapter of a page: for each trace the hit rate over the size of the pool.

use kvmem_report::{Chapter, Lines, Scale, Section};

use super::HitRateReport;
use crate::html::{Draw, head, tail};

impl Draw for HitRateReport {
    fn chapter(&self) -> Chapter {
        let how = "the same figures at each run";
        let mut chapter =
            head("cache policies", &self.version, self.quick, how, self.seconds, &self.machine);
        for trace in self.traces() {
            let (x, y) = (("blocks that fit", Scale::Log), ("% of blocks", Scale::Linear));
            let mut lines = Lines::new("Blocks found with all before them, more is better", x, y);
            let mut names: Vec<String> = self.of(trace).map(super::HitRateRow::column).collect();
            names.sort();
            names.dedup();
            for name in names {
                let rows = self.of(trace).filter(|row| row.column() == name);
                let points: Vec<(f64, f64)> =
                    rows.map(|row| (row.blocks as f64, row.percent())).collect();
                lines.line(name, points);
            }
            let section = Section::new(trace).plot(lines.plot());
            chapter = chapter.section(section.table(self.table(trace).into()));
        }
        tail(chapter, None, &self.goals)
    }
}
