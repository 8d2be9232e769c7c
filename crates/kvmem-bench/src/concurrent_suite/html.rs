//! The report as a chapter of a page: the figures of each scenario, numbers of threads from top to
//! bottom.

use kvmem_report::{Chapter, Scale};

use super::table::side_by_side;
use super::{SuiteReport, SuiteRow};
use crate::html::{Draw, bars, head, section, tail};
use crate::names::Named;

impl<R: SuiteRow> Draw for SuiteReport<R> {
    fn chapter(&self) -> Chapter {
        let how = format!("{} repetition(s)", self.reps);
        let mut chapter =
            head(&self.suite, &self.version, self.quick, &how, self.seconds, &self.machine);
        for &scenario in R::Scenario::ALL {
            let rows: Vec<&R> = self.rows.iter().filter(|row| row.scenario() == scenario).collect();
            let group = |row: &R| format!("{} thread(s)", row.threads());
            let series = |row: &R| row.contender().to_string();
            let plots = R::PLOTS.iter().map(|&(title, unit, figure)| {
                let names = R::Contender::ALL.iter().map(ToString::to_string);
                bars((title, unit, Scale::Log), names, &rows, group, series, |row| {
                    Some(figure(row))
                })
            });
            let title = format!("{scenario}: {}", R::CELLS);
            chapter = chapter.section(section(&title, plots).table(side_by_side(&rows).into()));
        }
        tail(chapter, None, &self.goals)
    }
}
