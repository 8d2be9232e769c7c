//! Horizontal bars in groups. Names of any length fit above them on a narrow screen.

use plotters::element::{PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, VPos};

use crate::axis::{Axis, Scale, figure, thousands};
use crate::ink::Ink;
use crate::plot::{
    Key, LINE, Plot, Side, chart, fill, frame_height, line, text, text_lines, text_width,
};

/// The height of a bar, including the gap to the next.
const BAR: u32 = 26;
/// The gap above a group's name.
const ABOVE: u32 = 8;
/// The gap between a bar and its figure, and after the figure.
const BESIDE: u32 = 8;

/// A plot of bars in groups.
#[derive(Clone, Debug)]
pub struct Bars {
    title: String,
    unit: String,
    scale: Scale,
    /// Names of series, in the order of their colours.
    series: Vec<String>,
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Group {
    name: String,
    bars: Vec<Bar>,
    bound: Option<f64>,
}

#[derive(Clone, Debug)]
struct Bar {
    series: usize,
    /// Distinguishes another bar of the same series, which is drawn fainter.
    variant: Option<String>,
    value: f64,
}

/// A group to which bars are added.
pub struct GroupMut<'a> {
    series: &'a mut Vec<String>,
    group: &'a mut Group,
}

impl Bars {
    /// Creates a plot without bars. `unit` is the label of the axis: the quantity and its unit.
    pub fn new(title: impl Into<String>, unit: impl Into<String>, scale: Scale) -> Bars {
        Bars {
            title: title.into(),
            unit: unit.into(),
            scale,
            series: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Adds names of series in advance. Plots with the same names use the same colours.
    #[must_use]
    pub fn series<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Bars {
        self.series.extend(names.into_iter().map(Into::into));
        self
    }

    /// Returns the group of this name, and creates it if necessary.
    pub fn group(&mut self, name: impl Into<String>) -> GroupMut<'_> {
        let name = name.into();
        let known = self.groups.iter().position(|group| group.name == name);
        let at = known.unwrap_or_else(|| {
            self.groups.push(Group { name, bars: Vec::new(), bound: None });
            self.groups.len() - 1
        });
        GroupMut { series: &mut self.series, group: &mut self.groups[at] }
    }

    /// Returns whether there is nothing to draw.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|group| group.bars.is_empty())
    }

    /// Draws the plot.
    #[must_use]
    pub fn plot(&self) -> Plot {
        let groups: Vec<&Group> =
            self.groups.iter().filter(|group| !group.bars.is_empty()).collect();
        let name_height = |group: &Group| ABOVE + LINE * text_lines(&group.name).len() as u32;
        let body: u32 =
            groups.iter().map(|group| name_height(group) + BAR * group.bars.len() as u32).sum();
        let values = groups
            .iter()
            .flat_map(|group| group.bars.iter().map(|bar| bar.value).chain(group.bound));
        let x = Side { axis: Axis::of(self.scale, values), about: &self.unit };
        // One unit per point of the drawing, from the top down.
        let y = Side {
            axis: Axis { scale: Scale::Linear, low: 0.0, high: f64::from(body.max(1)) },
            about: "",
        };
        let figures = groups
            .iter()
            .flat_map(|group| &group.bars)
            .map(|bar| text_width(&self.figure(bar.value)));
        let beside = figures.max().unwrap_or(0) + 2 * BESIDE;
        let height = body + frame_height(&x, &y);
        Plot::new(&self.title, self.describe(), self.legend(), height, |area| {
            let chart = chart(area, &x, &y, beside)?;
            let inside = chart.plotting_area();
            let name = text(Ink::Text, HPos::Left, VPos::Center);
            let mut top = 0;
            for group in groups {
                top += ABOVE;
                for line in text_lines(&group.name) {
                    let (_, middle) =
                        chart.backend_coord(&(x.axis.low, f64::from(body - top - LINE / 2)));
                    area.draw_text(&line, &name, (BESIDE as i32, middle))?;
                    top += LINE;
                }
                let first = top;
                for bar in &group.bars {
                    let (upper, lower) =
                        (f64::from(body - top - 2), f64::from(body - top - BAR + 2));
                    let ends = [(x.axis.low, upper), (bar.value, lower)];
                    inside.draw(&Rectangle::new(
                        ends,
                        fill(Ink::Series(bar.series), bar.opacity()),
                    ))?;
                    // Beside the bar and its bound.
                    let beside = group.bound.map_or(bar.value, |bound| bar.value.max(bound));
                    let end = chart.backend_coord(&(beside, (upper + lower) / 2.0));
                    area.draw_text(&self.figure(bar.value), &name, (end.0 + BESIDE as i32, end.1))?;
                    top += BAR;
                }
                if let Some(bound) = group.bound {
                    let ends = [first, top].map(|at| (bound, f64::from(body - at)));
                    inside.draw(&PathElement::new(ends, line(Ink::Text, 3)))?;
                }
            }
            Ok(())
        })
    }

    fn legend(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        for bar in self.groups.iter().flat_map(|group| &group.bars) {
            let key =
                Key { name: self.name(bar), ink: Ink::Series(bar.series), opacity: bar.opacity() };
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if self.groups.iter().any(|group| group.bound.is_some()) {
            keys.push(Key { name: "bound".to_owned(), ink: Ink::Text, opacity: 1.0 });
        }
        keys
    }

    fn name(&self, bar: &Bar) -> String {
        let series = &self.series[bar.series];
        bar.variant
            .as_ref()
            .map_or_else(|| series.clone(), |variant| format!("{series}, {variant}"))
    }

    /// Formats a figure; counts have no fractions.
    fn figure(&self, value: f64) -> String {
        if self.scale == Scale::Count { thousands(value) } else { figure(value) }
    }

    /// Returns every figure in words.
    fn describe(&self) -> String {
        let groups = self.groups.iter().map(|group| {
            let bars = group
                .bars
                .iter()
                .map(|bar| format!("{} {}", self.name(bar), self.figure(bar.value)));
            let bound = group.bound.map(|bound| format!("bound {}", self.figure(bound)));
            format!("{}: {}", group.name, bars.chain(bound).collect::<Vec<_>>().join(", "))
        });
        format!("Bars, {}. {}.", self.unit, groups.collect::<Vec<_>>().join("; "))
    }
}

impl Bar {
    fn opacity(&self) -> f64 {
        if self.variant.is_some() { 0.45 } else { 1.0 }
    }
}

impl GroupMut<'_> {
    /// Adds a bar. A value that is not a finite number is skipped.
    pub fn bar(&mut self, series: impl Into<String>, value: f64) -> &mut Self {
        self.push(series.into(), None, value)
    }

    /// Adds a fainter bar of the same series, for example a published figure.
    pub fn variant(
        &mut self,
        series: impl Into<String>,
        variant: impl Into<String>,
        value: f64,
    ) -> &mut Self {
        self.push(series.into(), Some(variant.into()), value)
    }

    /// Draws a line across the group: a limit that no bar can exceed.
    pub fn bound(&mut self, bound: f64) -> &mut Self {
        self.group.bound = Some(bound);
        self
    }

    fn push(&mut self, name: String, variant: Option<String>, value: f64) -> &mut Self {
        let known = self.series.iter().position(|known| *known == name);
        let series = known.unwrap_or_else(|| {
            self.series.push(name);
            self.series.len() - 1
        });
        if value.is_finite() {
            self.group.bars.push(Bar { series, variant, value });
        }
        self
    }
}
