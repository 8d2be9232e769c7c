//! *Html*: the report as a chapter of a page: for each scenario what a call takes, numbers of threads from top to bottom.

use kvmem_report::{Chapter, Scale};

use super::table::side_by_side;
use super::{ContenderId, Report, Row, Scenario};
use crate::html::{Draw, bars, head, section, tail};

impl Draw for Report {
    fn chapter(&self) -> Chapter {
        let how = format!("{} repetition(s)", self.reps);
        let mut chapter = head(&self.suite, &self.version, self.quick, &how, self.seconds, &self.machine);
        for scenario in Scenario::ALL {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.scenario == scenario).collect();
            let group = |row: &Row| format!("{} thread(s)", row.threads);
            let series = |row: &Row| row.contender.to_string();
            let names = || ContenderId::ALL.map(|id| id.to_string());
            let time = ("A call, less is better", "ns", Scale::Log);
            let plots = [bars(time, names(), &rows, group, series, |row| Some(row.ns))];
            let title = format!("{scenario}: ns of a call, and million calls a second of all threads");
            chapter = chapter.section(section(&title, plots).table(side_by_side(&rows).into()));
        }
        tail(chapter, None, &self.goals)
    }
}
