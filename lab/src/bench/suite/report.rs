//! *Report*: the result of a run, as JSON and as tables.

use std::fmt::{self, Display, Formatter};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::bench::machine::Machine;

/// The result of a run: the machine, the settings and every row. `Display` prints the tables.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The suite.
    pub suite: &'static str,
    /// Version of the library.
    pub version: &'static str,
    /// Whether the run did less: shorter loops, fewer repetitions, less memory.
    pub quick: bool,
    /// The settings of the run.
    pub settings: String,
    /// The machine.
    pub machine: Machine,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
    /// The tables, and what their figures are.
    pub headings: Vec<(String, String)>,
    /// The figures.
    pub rows: Vec<Row>,
    /// Rows that are absent, with the reasons.
    pub skipped: Vec<String>,
    /// The performance goals.
    pub goals: Vec<Goal>,
}

/// One contender in one line of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The table.
    pub table: String,
    /// The line of the table: a scenario.
    pub line: String,
    /// The contender.
    pub contender: String,
    /// Figures by name.
    #[serde(serialize_with = "as_map")]
    pub figures: Vec<(String, f64)>,
}

impl Row {
    /// Returns the figure `name`.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(of, _)| of == name).map(|(_, value)| *value)
    }
}

fn as_map<S: Serializer>(figures: &[(String, f64)], to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(figures.len()))?;
    figures.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
    map.end()
}

/// A limit for a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// The measured quantity.
    pub name: String,
    /// The figure of this run; the worst if several rows count.
    pub value: f64,
    /// The limit.
    pub limit: f64,
    /// Whether the limit is a minimum; otherwise it is a maximum.
    pub at_least: bool,
    /// The line of the worst figure.
    pub at: String,
}

impl Goal {
    /// Returns whether the figure meets the limit.
    pub fn met(&self) -> bool {
        if self.at_least { self.value >= self.limit } else { self.value <= self.limit }
    }
}

impl Report {
    /// Makes the report of a run that has measured nothing yet.
    pub fn new(suite: &'static str, quick: bool) -> Self {
        Report {
            suite,
            version: env!("CARGO_PKG_VERSION"),
            quick,
            settings: String::new(),
            machine: Machine::here(),
            seconds: 0.0,
            headings: Vec::new(),
            rows: Vec::new(),
            skipped: Vec::new(),
            goals: Vec::new(),
        }
    }

    fn table(&self, name: &str) -> Vec<Vec<String>> {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.table == name).collect();
        let contenders = distinct(rows.iter().map(|row| row.contender.as_str()));
        let figures =
            distinct(rows.iter().flat_map(|row| &row.figures).map(|(name, _)| name.as_str()));
        let cell = |row: Option<&&Row>, name| {
            row.and_then(|row| row.figure(name)).map_or_else(|| "–".to_owned(), shown)
        };
        let mut lines = Vec::new();
        if figures.len() > 4 {
            // Many figures: a line for each row.
            let head = ["", ""].into_iter().chain(figures.iter().copied());
            lines.push(head.map(str::to_owned).collect());
            for row in &rows {
                let cells = figures.iter().map(|name| cell(Some(row), name));
                lines.push(
                    [row.line.clone(), row.contender.clone()].into_iter().chain(cells).collect(),
                );
            }
            return lines;
        }
        let pairs: Vec<(&str, &str)> = contenders
            .iter()
            .flat_map(|&contender| figures.iter().map(move |&figure| (contender, figure)))
            .filter(|(contender, figure)| {
                rows.iter().any(|row| row.contender == *contender && row.figure(figure).is_some())
            })
            .collect();
        let head = pairs.iter().map(|(contender, figure)| match figures[..] {
            [only] => format!("{contender} {only}"),
            _ if *figure == figures[0] => format!("{contender} {figure}"),
            _ => (*figure).to_owned(),
        });
        lines.push([String::new()].into_iter().chain(head).collect());
        for line in distinct(rows.iter().map(|row| row.line.as_str())) {
            let cells = pairs.iter().map(|(contender, figure)| {
                let row = rows.iter().find(|row| row.line == line && row.contender == *contender);
                cell(row, figure)
            });
            lines.push([line.to_owned()].into_iter().chain(cells).collect());
        }
        lines
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Report { suite, version, settings, machine, seconds, .. } = self;
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {version} · {suite} · {pace} run, {settings}, {seconds:.0} s\n{machine}"
        )?;
        for table in distinct(self.rows.iter().map(|row| row.table.as_str())) {
            match self.headings.iter().find(|(name, _)| name == table) {
                Some((_, about)) => writeln!(f, "\n{table}: {about}")?,
                None => writeln!(f, "\n{table}")?,
            }
            write_columns(f, &self.table(table))?;
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nNot measured")?;
            self.skipped.iter().try_for_each(|skipped| writeln!(f, "  {skipped}"))?;
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            let line = |goal: &Goal| {
                let sign = if goal.at_least { "≥" } else { "≤" };
                let limit = format!("{sign} {}", shown(goal.limit));
                let met = if goal.met() { "met" } else { "MISSED" };
                vec![goal.name.clone(), shown(goal.value), limit, met.to_owned(), goal.at.clone()]
            };
            let head = ["", "figure", "limit", "", ""].map(str::to_owned).to_vec();
            let lines: Vec<_> = [head].into_iter().chain(self.goals.iter().map(line)).collect();
            write_columns(f, &lines)?;
        }
        Ok(())
    }
}

/// Writes columns: the first is aligned to the left, the others to the right.
fn write_columns(f: &mut Formatter<'_>, lines: &[Vec<String>]) -> fmt::Result {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for line in lines {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            text += &match column {
                0 => format!("  {cell:<width$}"),
                _ => format!("  {cell:>width$}"),
            };
        }
        writeln!(f, "{}", text.trim_end())?;
    }
    Ok(())
}

/// Formats a figure with four to five digits that count.
pub fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 1.0 => format!("{value:.4}"),
        size if size < 10.0 => format!("{value:.3}"),
        size if size < 100.0 => format!("{value:.2}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => indicatif::HumanCount(value.round() as u64).to_string(),
    }
}

/// Returns the values without repetitions, in their order.
fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_table_with_a_column_for_each_contender() {
        let mut report = Report::new("test", true);
        for (line, contender, ns) in [("64 B", "kvmem", 5.0), ("64 B", "mutex", 12.5)] {
            let (table, line) = ("bump".to_owned(), line.to_owned());
            let figures = vec![("ns".to_owned(), ns)];
            report.rows.push(Row { table, line, contender: contender.to_owned(), figures });
        }
        report.goals.push(Goal {
            name: "time".to_owned(),
            value: 0.4,
            limit: 0.5,
            at_least: false,
            at: "64 B".to_owned(),
        });
        let text = report.to_string();
        assert!(text.contains("kvmem ns  mutex ns") && text.contains("5.000     12.50"), "{text}");
        assert!(text.contains("≤ 0.5000  met"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][1]["figures"]["ns"], 12.5);
    }

    #[test]
    fn figures_have_as_many_digits_as_tell_them_apart() {
        let found = [0.0, 0.00012, 0.5, 5.25, 12.345, 123.45, 1234567.8].map(shown);
        assert_eq!(found, ["0", "1.2e-4", "0.5000", "5.250", "12.35", "123.5", "1,234,568"]);
    }
}
