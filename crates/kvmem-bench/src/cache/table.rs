//! *Table*: the report as text: one line for each scenario and number of threads, the contenders side by side.

use std::fmt::{self, Display, Formatter};

use super::{ContenderId, Report, Row, Scenario};
use crate::columns::{Columns, goals};

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, {} repetition(s), {:.0} s",
            self.version, self.suite, self.reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        writeln!(f, "\nNanoseconds of a call, and million calls a second of all threads")?;
        write!(f, "{}", side_by_side(&self.rows.iter().collect::<Vec<_>>()))?;
        if !self.goals.is_empty() {
            writeln!(f, "\nFigures to reach")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

pub(super) fn side_by_side(rows: &[&Row]) -> Columns {
    let contenders: Vec<ContenderId> =
        ContenderId::ALL.into_iter().filter(|&id| rows.iter().any(|row| row.contender == id)).collect();
    let heads = contenders.iter().flat_map(|id| [id.to_string(), "M/s".to_owned()]);
    let mut table = Columns::new([String::new()].into_iter().chain(heads));
    let mut lines: Vec<(Scenario, u32)> = rows.iter().map(|row| (row.scenario, row.threads)).collect();
    lines.dedup();
    for line in lines {
        let cells = contenders.iter().flat_map(|&id| {
            match rows.iter().find(|row| row.contender == id && (row.scenario, row.threads) == line) {
                Some(row) => [format!("{:.1}", row.ns), format!("{:.2}", row.mops)],
                None => ["–".to_owned(), "–".to_owned()],
            }
        });
        table.push([format!("{}, {} thread(s)", line.0, line.1)].into_iter().chain(cells));
    }
    table
}
