//! Lines of figures over a growing quantity.

use plotters::element::{Circle, PathElement};

use crate::axis::{Axis, Scale, figure};
use crate::ink::Ink;
use crate::plot::{Key, Plot, Side, chart, fill, line};

/// The height of the drawing.
const HEIGHT: u32 = 380;

/// A plot of lines, or of points.
#[derive(Clone, Debug)]
pub struct Lines {
    title: String,
    x: (String, Scale),
    y: (String, Scale),
    joined: bool,
    series: Vec<Series>,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    faint: bool,
    points: Vec<(f64, f64)>,
}

impl Lines {
    /// Creates a plot without lines. `x` and `y` are the labels of the axes, with units, and their
    /// scales.
    pub fn new(title: impl Into<String>, x: (&str, Scale), y: (&str, Scale)) -> Lines {
        let own = |(about, scale): (&str, Scale)| (about.to_owned(), scale);
        Lines { title: title.into(), x: own(x), y: own(y), joined: true, series: Vec::new() }
    }

    /// Draws points only: the values between two points are unknown.
    #[must_use]
    pub fn points_only(mut self) -> Lines {
        self.joined = false;
        self
    }

    /// Adds a line through `points`. Points that the axes cannot show are skipped; a line without
    /// points still uses a colour.
    pub fn line(&mut self, name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) {
        self.push(name.into(), false, points);
    }

    /// Adds a fainter line in the colour of the previous one.
    pub fn faint(&mut self, name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) {
        self.push(name.into(), true, points);
    }

    fn push(&mut self, name: String, faint: bool, points: impl IntoIterator<Item = (f64, f64)>) {
        let fits = |value: f64, scale| value.is_finite() && (scale != Scale::Log || value > 0.0);
        let points: Vec<_> =
            points.into_iter().filter(|&(x, y)| fits(x, self.x.1) && fits(y, self.y.1)).collect();
        self.series.push(Series { name, faint, points });
    }

    /// Returns whether there is nothing to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Draws the plot.
    #[must_use]
    pub fn plot(&self) -> Plot {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let across = || points().map(|(x, _)| x);
        let x = match self.x.1 {
            Scale::Linear => Axis::around(across()),
            scale => Axis::of(scale, across()),
        };
        let x = Side { axis: x, about: &self.x.0 };
        let y = Side { axis: Axis::of(self.y.1, points().map(|(_, y)| y)), about: &self.y.0 };
        let legend: Vec<Key> = self
            .inks()
            .map(|(series, ink, opacity)| Key { name: series.name.clone(), ink, opacity })
            .collect();
        Plot::new(&self.title, self.describe(), legend, HEIGHT, |area| {
            let chart = chart(area, &x, &y, 0)?;
            let inside = chart.plotting_area();
            for (series, ink, opacity) in self.inks() {
                if self.joined && series.points.len() > 1 {
                    let mut style = line(ink, 3);
                    style.color.3 = opacity;
                    inside.draw(&PathElement::new(series.points.clone(), style))?;
                } else {
                    for &point in &series.points {
                        inside.draw(&Circle::new(point, 4, fill(ink, opacity)))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns each series with its colour and opacity.
    fn inks(&self) -> impl Iterator<Item = (&Series, Ink, f64)> {
        let numbers = self.series.iter().scan(0usize, |next, series| {
            *next += usize::from(!series.faint);
            Some(next.saturating_sub(1))
        });
        self.series.iter().zip(numbers).filter(|(series, _)| !series.points.is_empty()).map(
            |(series, number)| (series, Ink::Series(number), if series.faint { 0.45 } else { 1.0 }),
        )
    }

    /// Describes the ends and the range of each line.
    fn describe(&self) -> String {
        let series = self.inks().map(|(series, _, _)| {
            let values = || series.points.iter().map(|(_, y)| *y);
            let (first, last) = (series.points[0], series.points[series.points.len() - 1]);
            format!(
                "{}: {} at {}, {} at {}, between {} and {}",
                series.name,
                figure(first.1),
                figure(first.0),
                figure(last.1),
                figure(last.0),
                figure(values().fold(f64::INFINITY, f64::min)),
                figure(values().fold(f64::NEG_INFINITY, f64::max))
            )
        });
        format!("{} over {}. {}.", self.y.0, self.x.0, series.collect::<Vec<_>>().join("; "))
    }
}
