//! *Plot*: a finished drawing with its title, what it says in words, and its legend.

use std::fmt::{self, Formatter};

use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, ShapeStyle, TextStyle};

use crate::axis::Axis;
use crate::escape::Escaped;
use crate::ink::{Ink, dress};

/// The width of every drawing. A page scales it to the width there is: 0.45 on a phone, 0.7 on a screen.
pub(crate) const WIDTH: u32 = 840;
/// The height of text. It is 12 points on a phone.
pub(crate) const TEXT: u32 = 27;
/// What is left free around a drawing.
const MARGIN: u32 = 24;

/// Where one draws.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Where one draws by the axes.
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;
/// Drawing goes into memory, so it does not fail, but the library cannot know.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A finished drawing. It follows the page's colours.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    title: String,
    description: String,
    legend: Vec<Key>,
    height: u32,
    /// What is inside of the SVG element.
    body: String,
}

/// What a colour stands for.
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
            // Its own element has a size in pixels and names a namespace by an address; ours has neither.
            Ok(()) => {
                svg.split_once('>').map_or("", |(_, rest)| rest).trim().trim_end_matches("</svg>").to_owned()
            }
            Err(error) => {
                format!("<text x=\"0\" y=\"40\">{}</text>\n", Escaped(&format!("not drawn: {error}")))
            }
        };
        Plot { title: title.to_owned(), description, legend, height, body: dress(&body) }
    }

    /// As HTML; `id` is the plot's own in its page.
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
             <title id=\"{id}t\">{title}</title>\n<desc id=\"{id}d\">{}</desc>\n{}</svg>\n</figure>",
            self.height,
            Escaped(&self.description),
            self.body
        )
    }
}

/// Text of the usual height, in this colour, hanging on this point of it.
pub(crate) fn text<'a>(ink: Ink, horizontal: HPos, vertical: VPos) -> TextStyle<'a> {
    TextStyle {
        color: ink.full().to_backend_color(),
        pos: Pos::new(horizontal, vertical),
        ..TextStyle::from(("sans-serif", TEXT).into_font())
    }
}

/// A line of this colour, so many wide.
pub(crate) fn line(ink: Ink, width: u32) -> ShapeStyle {
    ShapeStyle { color: ink.colour(1.0), filled: false, stroke_width: width }
}

/// A filled shape.
pub(crate) fn fill(ink: Ink, opacity: f64) -> ShapeStyle {
    ShapeStyle { color: ink.colour(opacity), filled: true, stroke_width: 0 }
}

/// One of the two axes of a chart.
pub(crate) struct Side<'a> {
    pub(crate) axis: Axis,
    /// What is measured, with its unit; nothing is drawn where it is empty.
    pub(crate) about: &'a str,
}

/// Axes, grid and labels, and between them a chart to draw in. `right` is left free beside it.
pub(crate) fn chart<'a, 'b>(
    area: &'a Area<'b>,
    x: &Side<'_>,
    y: &Side<'_>,
    right: u32,
) -> Result<Chart<'a, 'b>, DrawingAreaErrorKind<std::io::Error>> {
    let space = |side: &Side<'_>, size: u32| if side.about.is_empty() { 0 } else { size };
    let mut chart = ChartBuilder::on(area)
        .margin(MARGIN)
        .margin_right(MARGIN.max(right))
        .x_label_area_size(space(x, 2 * TEXT + 16))
        .y_label_area_size(space(y, 5 * TEXT))
        .build_cartesian_2d(x.axis, y.axis)?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(line(Ink::Grid, 2))
        .light_line_style(fill(Ink::Grid, 0.0))
        .axis_style(line(Ink::Dim, 2))
        .label_style(text(Ink::Dim, HPos::Center, VPos::Center))
        .axis_desc_style(text(Ink::Dim, HPos::Center, VPos::Center))
        .x_desc(x.about)
        .y_desc(y.about);
    if x.about.is_empty() {
        mesh.disable_x_axis().disable_x_mesh();
    }
    if y.about.is_empty() {
        mesh.disable_y_axis().disable_y_mesh();
    }
    mesh.draw()?;
    Ok(chart)
}
