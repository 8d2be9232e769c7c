//! A finished drawing with its title, its description in words, and its legend.

use std::fmt::{self, Formatter};

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, ShapeStyle, TextStyle};

use crate::axis::{Axis, label};
use crate::escape::Escaped;
use crate::ink::{Ink, replace_numbers};

/// The width of every drawing. A page scales it to the available width: by 0.64 on a phone of 390
/// pixels, and by at most 0.94, where a figure has its largest width.
pub(crate) const WIDTH: u32 = 520;
/// The height of text. Its letters have 11 pixels on a phone, and the size of the page's own text
/// on a screen.
pub(crate) const TEXT: u32 = 22;
/// The distance between lines of text.
pub(crate) const LINE: u32 = TEXT + 2;
/// The margin around a drawing.
const MARGIN: u32 = 14;
/// The gap between an axis and its labels.
const TICK: u32 = 10;

/// The drawing area in pixels.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The drawing area in the coordinates of the axes.
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
/// Drawing into memory does not fail, but the library's types do not say so.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A finished drawing, in the page's colours.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    title: String,
    description: String,
    legend: Vec<Key>,
    height: u32,
    /// The content of the SVG element.
    body: String,
}

/// An entry of the legend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) ink: Ink,
    pub(crate) opacity: f64,
}

impl Plot {
    pub(crate) fn new(
        title: &str,
        description: String,
        legend: Vec<Key>,
        height: u32,
        draw: impl FnOnce(&Area<'_>) -> Drawn,
    ) -> Plot {
        let mut svg = String::new();
        let drawn = {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            draw(&area).and_then(|()| area.present())
        };
        let body = match drawn {
            // The library's element has a size in pixels and a namespace URL; the page's element
            // has neither.
            Ok(()) => svg
                .split_once('>')
                .map_or("", |(_, rest)| rest)
                .trim()
                .trim_end_matches("</svg>")
                .to_owned(),
            Err(error) => {
                format!(
                    "<text x=\"0\" y=\"40\">{}</text>\n",
                    Escaped(&format!("not drawn: {error}"))
                )
            }
        };
        let body = replace_numbers(&body);
        Plot { title: title.to_owned(), description, legend, height, body }
    }

    /// Writes HTML; `id` is unique in the page.
    pub(crate) fn write(&self, id: &str, f: &mut Formatter<'_>) -> fmt::Result {
        let title = Escaped(&self.title);
        writeln!(f, "<figure>\n<figcaption>{title}</figcaption>")?;
        if !self.legend.is_empty() {
            writeln!(f, "<ul class=\"legend\">")?;
            for Key { name, ink, opacity } in &self.legend {
                let style = format!("background:var({});opacity:{opacity}", ink.variable());
                writeln!(f, "<li><i style=\"{style}\"></i>{}</li>", Escaped(name))?;
            }
            writeln!(f, "</ul>")?;
        }
        writeln!(
            f,
            "<svg role=\"img\" viewBox=\"0 0 {WIDTH} {}\" aria-labelledby=\"{id}t {id}d\">\n\
             <title id=\"{id}t\">{title}</title>\n<desc id=\"{id}d\">{}</desc>\n\
             {}</svg>\n</figure>",
            self.height,
            Escaped(&self.description),
            self.body
        )
    }
}

/// Returns the style of text of the usual height in this colour, anchored at a point.
pub(crate) fn text<'a>(ink: Ink, horizontal: HPos, vertical: VPos) -> TextStyle<'a> {
    TextStyle {
        color: ink.full().to_backend_color(),
        pos: Pos::new(horizontal, vertical),
        ..TextStyle::from(("sans-serif", TEXT).into_font())
    }
}

/// Returns the style of a line of this colour and width.
pub(crate) fn line(ink: Ink, width: u32) -> ShapeStyle {
    ShapeStyle { color: ink.colour(1.0), filled: false, stroke_width: width }
}

/// Returns the style of a filled shape.
pub(crate) fn fill(ink: Ink, opacity: f64) -> ShapeStyle {
    ShapeStyle { color: ink.colour(opacity), filled: true, stroke_width: 0 }
}

/// Returns an upper bound of the width of text, in the widest of the common fonts.
pub(crate) fn text_width(text: &str) -> u32 {
    // The library writes text of a given height in a font of 1/1.24 of it. A digit is 0.64 of the
    // font's size wide in the widest common font; letters of other scripts may be squares.
    let ems: f64 = text.chars().map(|c| if c < '\u{2e80}' { 0.64 } else { 1.0 }).sum();
    (ems * f64::from(TEXT) / 1.24).ceil() as u32
}

/// Divides text into lines that are no wider than a drawing, between words where possible.
pub(crate) fn text_lines(text: &str) -> Vec<String> {
    let fits = |text: &str| text_width(text) + 2 * MARGIN <= WIDTH;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if fits(&format!("{line} {word}")) => *line = format!("{line} {word}"),
            _ => lines.push(String::new()),
        }
        let Some(line) = lines.last_mut() else { continue };
        if line.is_empty() {
            line.push_str(word);
        }
        while let Some(line) = lines.last_mut().filter(|line| !fits(line)) {
            // As many letters as fit, but at least one.
            let first = line.chars().next().map_or(0, char::len_utf8);
            let ends = line.char_indices().rev().map(|(at, _)| at);
            let at =
                ends.take_while(|at| *at > first).find(|at| fits(&line[..*at])).unwrap_or(first);
            let rest = line.split_off(at);
            if rest.is_empty() {
                break;
            }
            lines.push(rest);
        }
    }
    lines
}

/// One of the two axes of a chart.
pub(crate) struct Side<'a> {
    pub(crate) axis: Axis,
    /// The quantity with its unit; an axis without it is not drawn.
    pub(crate) about: &'a str,
}

impl Side<'_> {
    /// Returns the height of the axis label, which is above or below the chart: beside the axis it
    /// would not fit on a phone.
    fn about_height(&self) -> u32 {
        text_lines(self.about).len() as u32 * LINE
    }

    /// Returns half the width of the label at the end of a horizontal axis, which extends beyond
    /// the end.
    fn overhang(&self, label_at: impl Fn(&[f64]) -> Option<&f64>) -> u32 {
        if self.about.is_empty() {
            return 0;
        }
        label_at(&self.axis.ticks()).map_or(0, |tick| text_width(&label(*tick)).div_ceil(2))
    }
}

impl Side<'_> {
    /// Returns the ticks of a horizontal axis of this length that get labels: the last one, and
    /// from there backwards those whose labels do not touch.
    fn labelled(&self, length: u32) -> Vec<f64> {
        let mut kept: Vec<f64> = Vec::new();
        let mut free = f64::INFINITY;
        for tick in self.axis.ticks().into_iter().rev() {
            let (middle, half) = (
                self.axis.place(tick) * f64::from(length),
                f64::from(text_width(&label(tick))) / 2.0,
            );
            if middle + half <= free {
                free = middle - half - f64::from(TICK) / 2.0;
                kept.push(tick);
            }
        }
        kept
    }
}

/// Returns the height of axes and labels, without the chart between them.
pub(crate) fn frame_height(x: &Side<'_>, y: &Side<'_>) -> u32 {
    let labels = if x.about.is_empty() { 0 } else { LINE + TICK };
    2 * MARGIN + y.about_height() + labels + x.about_height()
}

/// Draws axes, grid and labels, and returns the chart between them. At least `right` stays free at
/// its right side.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    x: &Side<'_>,
    y: &Side<'_>,
    right: u32,
) -> Result<Chart<'a, 'b>, DrawingAreaErrorKind<std::io::Error>> {
    let widest = y.axis.ticks().iter().map(|tick| text_width(&label(*tick))).max().unwrap_or(0);
    let beside = if y.about.is_empty() { 0 } else { widest + TICK };
    let left = (MARGIN + beside).max(x.overhang(|ticks| ticks.first()));
    let right = MARGIN.max(right).max(x.overhang(|ticks| ticks.last()));
    let labelled = x.labelled(WIDTH.saturating_sub(left + right));
    let x_label = |tick: &f64| if labelled.contains(tick) { label(*tick) } else { String::new() };
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        .margin_left(left - beside)
        .margin_right(right)
        .margin_top(MARGIN + y.about_height())
        .margin_bottom(MARGIN + x.about_height())
        .x_label_area_size(if x.about.is_empty() { 0 } else { LINE + TICK })
        .y_label_area_size(beside)
        .build_cartesian_2d(x.axis, y.axis)?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(line(Ink::Grid, 1))
        .light_line_style(fill(Ink::Grid, 0.0))
        .axis_style(line(Ink::Dim, 1))
        .x_label_formatter(&x_label)
        // Keeps the first label from touching that of the other axis.
        .set_tick_mark_size(LabelAreaPosition::Bottom, TICK - 2)
        .label_style(text(Ink::Dim, HPos::Center, VPos::Center));
    if x.about.is_empty() {
        mesh.disable_x_axis().disable_x_mesh();
    }
    if y.about.is_empty() {
        mesh.disable_y_axis().disable_y_mesh();
    }
    mesh.draw()?;
    let (_, height) = area.dim_in_pixel();
    let above = (MARGIN / 2 + LINE / 2) as i32;
    for (number, line) in (0..).zip(text_lines(y.about)) {
        let at = (MARGIN as i32, above + number * LINE as i32);
        area.draw_text(&line, &text(Ink::Dim, HPos::Left, VPos::Center), at)?;
    }
    let below = (height - MARGIN - x.about_height() + LINE / 2) as i32;
    for (number, line) in (0..).zip(text_lines(x.about)) {
        let at = ((WIDTH / 2) as i32, below + number * LINE as i32);
        area.draw_text(&line, &text(Ink::Dim, HPos::Center, VPos::Center), at)?;
    }
    Ok(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_text_are_no_wider_than_a_drawing() {
        for text in
            ["", "a", &"word ".repeat(40), &"longer-than-a-line".repeat(9), &"漢".repeat(80)]
        {
            let lines = text_lines(text);
            assert!(lines.iter().all(|line| text_width(line) <= WIDTH), "{lines:?}");
            let letters =
                |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            assert_eq!(letters(&lines.concat()), letters(text), "no letter is lost");
        }
        assert_eq!(text_lines("one two").len(), 1);
    }
}
