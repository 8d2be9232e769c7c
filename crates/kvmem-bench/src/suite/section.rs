//! *Section*: rows of a report as plots and tables, for its text and for its page.

use kvmem_report::{Bars, Lines, Plot, Scale};

use super::columns::Columns;

/// Plots and tables of some rows of a report. The text shows the tables, a page shows both.
#[derive(Clone, Debug)]
pub struct Section {
    pub(super) heading: String,
    pub(super) scenario: Option<String>,
    pub(super) note: Option<String>,
    pub(super) plots: Vec<Plot>,
    pub(super) tables: Vec<Columns>,
}

impl Section {
    pub(crate) fn new(heading: impl Into<String>) -> Self {
        let heading = heading.into();
        Section { heading, scenario: None, note: None, plots: Vec::new(), tables: Vec::new() }
    }

    /// Creates one of several sections with the same heading. A page shows each with its scenario;
    /// the text shows the heading once and joins tables that have the same columns.
    pub(crate) fn of_scenario(scenario: impl ToString, heading: &str) -> Self {
        Section { scenario: Some(scenario.to_string()), ..Section::new(heading) }
    }

    /// Creates a section that has only a line of text; the text shows no heading.
    pub(crate) fn of_note(heading: &str, note: String) -> Self {
        Section { note: Some(note), ..Section::new(heading) }
    }

    /// Adds a plot, unless it is empty.
    pub(crate) fn bars(mut self, bars: Bars) -> Self {
        if !bars.is_empty() {
            self.plots.push(bars.plot());
        }
        self
    }

    /// Adds a plot, unless it is empty.
    pub(crate) fn lines(mut self, lines: Lines) -> Self {
        if !lines.is_empty() {
            self.plots.push(lines.plot());
        }
        self
    }

    /// Adds a table, unless it is empty.
    pub(crate) fn table(mut self, table: Columns) -> Self {
        if !table.is_empty() {
            self.tables.push(table);
        }
        self
    }
}

/// Builds a bar plot of one figure of all rows that have it: in groups by `group`, side by side by
/// `series`; `names` are series that keep their colours in all plots.
pub(crate) fn bars<R>(
    (title, unit, scale): (&str, &str, Scale),
    names: impl IntoIterator<Item = String>,
    rows: &[&R],
    group: impl Fn(&R) -> String,
    series: impl Fn(&R) -> String,
    figure: impl Fn(&R) -> Option<f64>,
) -> Bars {
    let mut bars = Bars::new(title, unit, scale).series(names);
    for row in rows {
        if let Some(figure) = figure(row) {
            bars.group(group(row)).bar(series(row), figure);
        }
    }
    bars
}
