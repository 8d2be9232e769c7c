//! *Columns*: tables of text, and the format of figures in their cells.

use std::fmt::{self, Display, Formatter};

/// Columns of text: the first is aligned to the left, the others to the right.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    head: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Columns {
    pub(crate) fn new<T: Into<String>>(head: impl IntoIterator<Item = T>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), lines: Vec::new() }
    }

    pub(crate) fn push(&mut self, line: impl IntoIterator<Item = String>) {
        self.lines.push(line.into_iter().collect());
    }

    /// Returns whether the table has no lines below its head.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Appends the lines of `other` if both have the same head; else returns it.
    pub(super) fn join(&mut self, other: Columns) -> Option<Columns> {
        if self.head != other.head {
            return Some(other);
        }
        self.lines.extend(other.lines);
        None
    }
}

impl From<Columns> for kvmem_report::Table {
    fn from(columns: Columns) -> Self {
        columns.lines.into_iter().fold(Self::new(columns.head), Self::row)
    }
}

impl Display for Columns {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let lines = || [&self.head].into_iter().chain(&self.lines);
        let columns = lines().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| {
            let cells = lines().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        for line in lines() {
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

/// Builds a table with the rows of `columns` side by side: a line for each name that `line`
/// returns, in the order of the rows, and `N` cells for each column. A dash marks a missing row.
/// Columns are values with the headings of their cells; those without a row are left out.
pub(crate) fn side_by_side<R, C: PartialEq, const N: usize>(
    rows: &[&R],
    columns: impl IntoIterator<Item = (C, [String; N])>,
    line: impl Fn(&R) -> String,
    column: impl Fn(&R) -> C,
    cells: impl Fn(&R) -> [String; N],
) -> Columns {
    let present = |(id, _): &(C, [String; N])| rows.iter().any(|row| column(row) == *id);
    let (ids, heads): (Vec<C>, Vec<[String; N]>) = columns.into_iter().filter(present).unzip();
    let mut table = Columns::new([String::new()].into_iter().chain(heads.into_iter().flatten()));
    for name in distinct(rows.iter().map(|row| line(row))) {
        let same = |id: &C| rows.iter().find(|row| column(row) == *id && line(row) == name);
        let cells = |id| same(id).map_or_else(|| [(); N].map(|()| dash()), |row| cells(row));
        let cells: Vec<String> = ids.iter().flat_map(cells).collect();
        table.push([name].into_iter().chain(cells));
    }
    table
}

/// Returns the values without repetitions, in their order.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Returns the cell of a missing figure.
pub(crate) fn dash() -> String {
    "–".to_owned()
}

/// Formats a figure with `digits` behind the point, or a dash.
pub(crate) fn decimal(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(dash, |value| format!("{value:.digits$}"))
}

/// Formats a number with separated thousands, or a dash.
pub(crate) fn count(value: Option<u64>) -> String {
    let Some(value) = value else { return dash() };
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

/// Formats a figure with enough digits to tell it from its limit.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size < 0.001 => format!("{value:.1e}"),
        size if size < 10.0 => {
            format!("{value:.5}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        _ => format!("{value:.0}"),
    }
}
