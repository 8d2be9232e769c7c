//! Time lines: rows of activities with their beginnings and ends.

use plotters::element::Rectangle;
use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{Axis, Scale, figure};
use crate::ink::Ink;
use crate::plot::{Key, LINE, Plot, Side, chart, fill, frame_height, text, text_lines};

/// The height of a row's spans, including the gap to the next row.
const ROW: u32 = 28;

/// A time line: rows of spans.
#[derive(Clone, Debug)]
pub struct Spans {
    title: String,
    unit: String,
    kinds: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    name: String,
    spans: Vec<Span>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    kind: usize,
    from: f64,
    to: f64,
}

impl Spans {
    /// Creates a time line without spans. `unit` is the label of the time axis.
    pub fn new(title: impl Into<String>, unit: impl Into<String>) -> Spans {
        Spans { title: title.into(), unit: unit.into(), kinds: Vec::new(), rows: Vec::new() }
    }

    /// Adds kinds in advance. Plots with the same kinds use the same colours.
    #[must_use]
    pub fn kinds<S: Into<String>>(mut self, kinds: impl IntoIterator<Item = S>) -> Spans {
        self.kinds.extend(kinds.into_iter().map(Into::into));
        self
    }

    /// Adds a span of this kind to the row of this name. Rows appear in the order in which they
    /// were named first.
    pub fn span(&mut self, row: &str, kind: &str, from: f64, to: f64) {
        if !(from.is_finite() && to.is_finite()) {
            return;
        }
        let kind = self.kinds.iter().position(|known| known == kind).unwrap_or_else(|| {
            self.kinds.push(kind.to_owned());
            self.kinds.len() - 1
        });
        let span = Span { kind, from: from.min(to), to: to.max(from) };
        match self.rows.iter_mut().find(|known| known.name == row) {
            Some(row) => row.spans.push(span),
            None => self.rows.push(Row { name: row.to_owned(), spans: vec![span] }),
        }
    }

    /// Returns the number of spans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.iter().map(|row| row.spans.len()).sum()
    }

    /// Returns whether there is nothing to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Draws the plot.
    #[must_use]
    pub fn plot(&self) -> Plot {
        let name_height = |row: &Row| LINE * text_lines(&row.name).len() as u32;
        let body: u32 = self.rows.iter().map(|row| name_height(row) + ROW).sum();
        let ends = self.rows.iter().flat_map(|row| row.spans.iter().map(|span| span.to));
        let x = Side { axis: Axis::of(Scale::Linear, ends), about: &self.unit };
        let y = Side {
            axis: Axis { scale: Scale::Linear, low: 0.0, high: f64::from(body.max(1)) },
            about: "",
        };
        let seen =
            |kind: usize| self.rows.iter().flat_map(|row| &row.spans).any(|span| span.kind == kind);
        let legend = self.kinds.iter().enumerate().filter(|(number, _)| seen(*number)).map(
            |(number, kind)| Key { name: kind.clone(), ink: Ink::Series(number), opacity: 1.0 },
        );
        let height = body + frame_height(&x, &y);
        Plot::new(&self.title, self.describe(), legend.collect(), height, |area| {
            let chart = chart(area, &x, &y, 0)?;
            let name = text(Ink::Text, HPos::Left, VPos::Center);
            let mut top = body;
            for row in &self.rows {
                for line in text_lines(&row.name) {
                    let (left, middle) =
                        chart.backend_coord(&(x.axis.low, f64::from(top - LINE / 2)));
                    area.draw_text(&line, &name, (left, middle))?;
                    top -= LINE;
                }
                let (upper, lower) = (f64::from(top), f64::from(top - ROW + 4));
                top -= ROW;
                for span in &row.spans {
                    let (from, upper) = chart.backend_coord(&(span.from, upper));
                    let (to, lower) = chart.backend_coord(&(span.to, lower));
                    // A span that is too short to be visible becomes a line; consecutive spans stay
                    // distinct.
                    let to = if to - from > 2 { to - 1 } else { from + 1 };
                    area.draw(&Rectangle::new(
                        [(from, upper), (to, lower)],
                        fill(Ink::Series(span.kind), 1.0),
                    ))?;
                }
            }
            Ok(())
        })
    }

    /// Describes when each row was active.
    fn describe(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let from = row.spans.iter().map(|span| span.from).fold(f64::INFINITY, f64::min);
            let to = row.spans.iter().map(|span| span.to).fold(f64::NEG_INFINITY, f64::max);
            let busy: f64 = row.spans.iter().map(|span| span.to - span.from).sum();
            format!(
                "{}: {} pieces from {} to {}, {} in all",
                row.name,
                row.spans.len(),
                figure(from),
                figure(to),
                figure(busy)
            )
        });
        format!("Time line, {}. {}.", self.unit, rows.collect::<Vec<_>>().join("; "))
    }
}
