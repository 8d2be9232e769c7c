//! Heat maps: an amount at each position, over a growing quantity.

use plotters::element::Rectangle;

use crate::axis::{Axis, figure};
use crate::ink::Ink;
use crate::plot::{Plot, Side, chart, fill};

/// The height of the drawing.
const HEIGHT: u32 = 420;
/// The number of shades above zero. Adjacent cells of one shade are drawn as one, so fewer shades
/// make a smaller page.
const SHADES: f64 = 12.0;

/// Returns the shade of a cell. Anything above zero is visible.
fn shade(cell: f64) -> u32 {
    (cell.clamp(0.0, 1.0) * SHADES).ceil() as u32
}

/// A map of shades: columns from left to right, each with cells from the bottom up.
#[derive(Clone, Debug)]
pub struct Heat {
    title: String,
    x: String,
    y: String,
    /// The values at the bottom of the first cell and at the top of the last.
    y_range: (f64, f64),
    columns: Vec<Column>,
}

#[derive(Clone, Debug)]
struct Column {
    from: f64,
    to: f64,
    /// From 0 (nothing) to 1 (everything).
    cells: Vec<f64>,
}

impl Heat {
    /// Creates a map without columns. `x` and `y` are the labels of the axes; `y_range` is the
    /// range that the cells of a column span.
    pub fn new(title: impl Into<String>, x: &str, y: &str, y_range: (f64, f64)) -> Heat {
        Heat { title: title.into(), x: x.to_owned(), y: y.to_owned(), y_range, columns: Vec::new() }
    }

    /// Adds a column of cells, each from 0 (nothing) to 1 (everything).
    pub fn column(&mut self, from: f64, to: f64, cells: impl IntoIterator<Item = f64>) {
        self.columns.push(Column { from, to, cells: cells.into_iter().collect() });
    }

    /// Returns whether there is nothing to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.columns.iter().all(|column| column.cells.is_empty())
    }

    /// Draws the plot.
    #[must_use]
    pub fn plot(&self) -> Plot {
        let edges = self.columns.iter().flat_map(|column| [column.from, column.to]);
        let x = Side { axis: Axis::around(edges), about: &self.x };
        let y = Side { axis: Axis::around([self.y_range.0, self.y_range.1]), about: &self.y };
        Plot::new(&self.title, self.describe(), Vec::new(), HEIGHT, |area| {
            let chart = chart(area, &x, &y, 0)?;
            let inside = chart.plotting_area();
            for column in &self.columns {
                let height = (self.y_range.1 - self.y_range.0) / column.cells.len().max(1) as f64;
                let shades: Vec<u32> = column.cells.iter().map(|cell| shade(*cell)).collect();
                let mut at = 0;
                for run in shades.chunk_by(|a, b| a == b) {
                    let edge = |cell: usize| self.y_range.0 + height * cell as f64;
                    let ends = [(column.from, edge(at)), (column.to, edge(at + run.len()))];
                    at += run.len();
                    if run[0] > 0 {
                        let shade = fill(Ink::Series(0), f64::from(run[0]) / SHADES);
                        inside.draw(&Rectangle::new(ends, shade))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Describes the first and the last column.
    fn describe(&self) -> String {
        let mean =
            |column: &Column| column.cells.iter().sum::<f64>() / column.cells.len().max(1) as f64;
        let at = |column: &Column| {
            format!("{} on average at {}", figure(mean(column)), figure(column.to))
        };
        let ends = [self.columns.first(), self.columns.last()].into_iter().flatten().map(at);
        format!("{} over {}, from 0 to 1: {}.", self.y, self.x, ends.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_above_zero_is_visible_and_one_is_the_last_shade() {
        assert_eq!([0.0, 1e-9, 0.5, 1.0, 7.0, -1.0].map(shade), [0, 1, 6, 12, 12, 0]);
        assert_eq!(shade(f64::NAN), 0);
    }
}
