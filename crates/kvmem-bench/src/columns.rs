//! Text tables, and the format of figures in their cells.

use std::fmt::{self, Display, Formatter};

use crate::report::Goal;

/// Columns of text: the first is aligned to the left, the others to the right.
pub(crate) struct Columns {
    lines: Vec<Vec<String>>,
}

impl Columns {
    pub(crate) fn new(head: impl IntoIterator<Item = String>) -> Self {
        Self { lines: vec![head.into_iter().collect()] }
    }

    pub(crate) fn push(&mut self, line: impl IntoIterator<Item = String>) {
        self.lines.push(line.into_iter().collect());
    }
}

impl From<Columns> for kvmem_report::Table {
    fn from(columns: Columns) -> Self {
        let mut lines = columns.lines.into_iter();
        let head = lines.next().unwrap_or_default();
        lines.fold(Self::new(head), Self::row)
    }
}

impl Display for Columns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| {
            self.lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        for line in &self.lines {
            let mut text = String::from(" ");
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let cell = if column == 0 {
                    format!(" {cell:<width$}")
                } else {
                    format!("  {cell:>width$}")
                };
                text.push_str(&cell);
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// Formats whole nanoseconds, or a dash.
pub(crate) fn nanoseconds(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"))
}

/// Formats a number with separated thousands, or a dash.
pub(crate) fn count(value: Option<u64>) -> String {
    let Some(value) = value else { return "–".to_owned() };
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Converts fixed text to cells.
pub(crate) fn strings<const N: usize>(cells: [&str; N]) -> [String; N] {
    cells.map(str::to_owned)
}

/// Builds a table with a line for each goal: the figure, its limit, whether it is met, and where
/// the figure was measured.
pub(crate) fn goals(goals: &[Goal]) -> Columns {
    let mut columns = Columns::new(strings(["", "figure", "limit", "", ""]));
    for goal in goals {
        let sign = if goal.at_least { "≥" } else { "≤" };
        columns.push([
            goal.name.clone(),
            short(goal.value),
            format!("{sign} {}", short(goal.limit)),
            if goal.met() { "met".to_owned() } else { "MISSED".to_owned() },
            goal.at.clone().unwrap_or_default(),
        ]);
    }
    columns
}

/// Formats a figure with enough digits to tell it from its limit.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 10.0 => {
            format!("{value:.5}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.0}"),
    }
}
