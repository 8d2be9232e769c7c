//! The report as text: one line for each scenario and number of threads, the contenders side by
//! side.

use std::fmt::{self, Display, Formatter};

use super::{SuiteReport, SuiteRow};
use crate::columns::{Columns, goals};
use crate::names::Named;

impl<R: SuiteRow> Display for SuiteReport<R> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, {} repetition(s), {:.0} s",
            self.version, self.suite, self.reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        let mut cells = R::CELLS.chars();
        let first = cells.next().into_iter().flat_map(char::to_uppercase);
        writeln!(f, "\n{}", first.chain(cells).collect::<String>())?;
        for (at, rows) in alike(&self.rows).iter().enumerate() {
            write!(f, "{}{}", if at > 0 { "\n" } else { "" }, side_by_side(rows))?;
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

/// Returns the contenders of these rows, in their order.
fn contenders<R: SuiteRow>(rows: &[&R]) -> Vec<R::Contender> {
    let all = R::Contender::ALL.iter().copied();
    all.filter(|&id| rows.iter().any(|row| row.contender() == id)).collect()
}

/// Divides the rows into tables: consecutive scenarios with the same contenders share a table.
fn alike<R: SuiteRow>(rows: &[R]) -> Vec<Vec<&R>> {
    let mut tables: Vec<Vec<&R>> = Vec::new();
    for &scenario in R::Scenario::ALL {
        let rows: Vec<&R> = rows.iter().filter(|row| row.scenario() == scenario).collect();
        match tables.last_mut() {
            _ if rows.is_empty() => {}
            Some(table) if contenders(table) == contenders(&rows) => table.extend(rows),
            _ => tables.push(rows),
        }
    }
    tables
}

pub(super) fn side_by_side<R: SuiteRow>(rows: &[&R]) -> Columns {
    let contenders = contenders(rows);
    let heads = contenders.iter().flat_map(|id| [id.to_string(), R::SECOND.to_owned()]);
    let mut table = Columns::new([String::new()].into_iter().chain(heads));
    let mut lines: Vec<(R::Scenario, u32)> =
        rows.iter().map(|row| (row.scenario(), row.threads())).collect();
    lines.dedup();
    for line in lines {
        let cells = contenders.iter().flat_map(|&id| {
            let same = |row: &&&R| row.contender() == id && (row.scenario(), row.threads()) == line;
            match rows.iter().find(same) {
                Some(row) => row.cells(),
                None => ["–".to_owned(), "–".to_owned()],
            }
        });
        table.push([format!("{}, {} thread(s)", line.0, line.1)].into_iter().chain(cells));
    }
    table
}
