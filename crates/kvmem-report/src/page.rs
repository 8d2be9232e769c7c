//! A page: one HTML file that needs nothing else.

use std::fmt::{self, Display, Formatter};

use crate::escape::Escaped;
use crate::plot::Plot;

/// Tables with more rows than this are collapsed.
const FOLDED: usize = 16;

/// The style: light and dark colours, one column on a phone and two on a screen.
const STYLE: &str = include_str!("page.css");
/// Forbids fetching and scripts, whatever the page contains.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// A page. `Display` writes the file.
#[derive(Clone, Debug, Default)]
pub struct Page {
    title: String,
    chapters: Vec<Chapter>,
}

/// A unit of content, such as all results of one program.
#[derive(Clone, Debug)]
pub struct Chapter {
    title: String,
    lines: Vec<String>,
    sections: Vec<Section>,
}

/// Plots with their tables and texts.
#[derive(Clone, Debug)]
pub struct Section {
    title: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Literal(String),
    Plot(Plot),
    Table(Table),
    Verdicts(Vec<Verdict>),
}

/// Rows of text. The first cell of a row is its heading.
#[derive(Clone, Debug, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A figure compared with its limit.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The goal.
    pub what: String,
    /// The figure.
    pub figure: String,
    /// The limit, with the sign of its direction.
    pub limit: String,
    /// Whether the figure meets the limit.
    pub met: bool,
    /// The place of the figure, such as a row.
    pub at: Option<String>,
}

impl Page {
    /// Creates a page without chapters.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), chapters: Vec::new() }
    }

    /// Adds a chapter.
    #[must_use]
    pub fn chapter(mut self, chapter: Chapter) -> Page {
        self.chapters.push(chapter);
        self
    }
}

impl Chapter {
    /// Creates a chapter without sections.
    pub fn new(title: impl Into<String>) -> Chapter {
        Chapter { title: title.into(), lines: Vec::new(), sections: Vec::new() }
    }

    /// Adds a line below the title.
    #[must_use]
    pub fn line(mut self, line: impl Into<String>) -> Chapter {
        self.lines.push(line.into());
        self
    }

    /// Adds a section, unless it is empty.
    #[must_use]
    pub fn section(mut self, section: Section) -> Chapter {
        if !section.parts.is_empty() {
            self.sections.push(section);
        }
        self
    }
}

impl Section {
    /// Creates an empty section.
    pub fn new(title: impl Into<String>) -> Section {
        Section { title: title.into(), parts: Vec::new() }
    }

    /// Adds a paragraph.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Section {
        self.with(Part::Text(text.into()))
    }

    /// Adds preformatted text.
    #[must_use]
    pub fn literal(self, text: impl Into<String>) -> Section {
        self.with(Part::Literal(text.into()))
    }

    /// Adds a plot.
    #[must_use]
    pub fn plot(self, plot: Plot) -> Section {
        self.with(Part::Plot(plot))
    }

    /// Adds a table, unless it has no rows.
    #[must_use]
    pub fn table(self, table: Table) -> Section {
        if table.rows.is_empty() { self } else { self.with(Part::Table(table)) }
    }

    /// Adds a list of verdicts, unless it is empty.
    #[must_use]
    pub fn verdicts(self, verdicts: impl IntoIterator<Item = Verdict>) -> Section {
        let verdicts: Vec<Verdict> = verdicts.into_iter().collect();
        if verdicts.is_empty() { self } else { self.with(Part::Verdicts(verdicts)) }
    }

    fn with(mut self, part: Part) -> Section {
        self.parts.push(part);
        self
    }
}

impl Table {
    /// Creates a table with this head and no rows.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    #[must_use]
    pub fn row<S: Into<String>>(mut self, cells: impl IntoIterator<Item = S>) -> Table {
        self.rows.push(cells.into_iter().map(Into::into).collect());
        self
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let title = Escaped(&self.title);
        writeln!(
            f,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"/>\n\
             <link rel=\"icon\" href=\"data:,\"/>\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n\
             <body>\n<header>\n<h1>{title}</h1>"
        )?;
        let chapters = || self.chapters.iter().enumerate();
        if self.chapters.len() > 1 {
            writeln!(f, "<nav>\n<ul>")?;
            for (c, chapter) in chapters() {
                writeln!(f, "<li><a href=\"#c{c}\">{}</a></li>", Escaped(&chapter.title))?;
            }
            writeln!(f, "</ul>\n</nav>")?;
        }
        writeln!(f, "</header>\n<main>")?;
        for (c, chapter) in chapters() {
            chapter.write(c, f)?;
        }
        writeln!(f, "</main>\n</body>\n</html>")
    }
}

impl Chapter {
    fn write(&self, number: usize, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<article id=\"c{number}\">\n<h2>{}</h2>", Escaped(&self.title))?;
        for line in &self.lines {
            writeln!(f, "<p class=\"dim\">{}</p>", Escaped(line))?;
        }
        for (s, section) in self.sections.iter().enumerate() {
            section.write(&format!("c{number}s{s}"), f)?;
        }
        writeln!(f, "</article>")
    }
}

impl Section {
    fn write(&self, id: &str, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "<section id=\"{id}\">\n<h3>{}</h3>", Escaped(&self.title))?;
        let mut plots = 0;
        for parts in self.parts.chunk_by(|a, b| matches!((a, b), (Part::Plot(_), Part::Plot(_)))) {
            let drawn = matches!(parts[0], Part::Plot(_));
            if drawn {
                writeln!(f, "<div class=\"plots\">")?;
            }
            for part in parts {
                match part {
                    Part::Text(text) => writeln!(f, "<p>{}</p>", Escaped(text))?,
                    Part::Literal(text) => {
                        writeln!(f, "<div class=\"wide\"><pre>{}</pre></div>", Escaped(text))?;
                    }
                    Part::Plot(plot) => {
                        plot.write(&format!("{id}p{plots}"), f)?;
                        plots += 1;
                    }
                    Part::Table(table) => table.write(&self.title, f)?,
                    Part::Verdicts(verdicts) => {
                        writeln!(f, "<ul class=\"verdicts\">")?;
                        for verdict in verdicts {
                            verdict.write(f)?;
                        }
                        writeln!(f, "</ul>")?;
                    }
                }
            }
            if drawn {
                writeln!(f, "</div>")?;
            }
        }
        writeln!(f, "</section>")
    }
}

impl Table {
    fn write(&self, about: &str, f: &mut Formatter<'_>) -> fmt::Result {
        let open = if self.rows.len() > FOLDED { "" } else { " open=\"open\"" };
        writeln!(
            f,
            "<details{open}>\n<summary>Table, {} rows</summary>\n\
             <div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">\n<table>",
            self.rows.len(),
            Escaped(about)
        )?;
        write!(f, "<thead><tr>")?;
        for cell in &self.head {
            write!(f, "<th scope=\"col\">{}</th>", Escaped(cell))?;
        }
        writeln!(f, "</tr></thead>\n<tbody>")?;
        for row in &self.rows {
            write!(f, "<tr>")?;
            for (column, cell) in row.iter().enumerate() {
                let cell = Escaped(cell);
                match column {
                    0 => write!(f, "<th scope=\"row\">{cell}</th>")?,
                    _ => write!(f, "<td>{cell}</td>")?,
                }
            }
            writeln!(f, "</tr>")?;
        }
        writeln!(f, "</tbody>\n</table>\n</div>\n</details>")
    }
}

impl Verdict {
    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (class, word) = if self.met { ("met", "met") } else { ("missed", "MISSED") };
        write!(
            f,
            "<li class=\"{class}\"><b>{word}</b> {}: {}, limit {}",
            Escaped(&self.what),
            Escaped(&self.figure),
            Escaped(&self.limit)
        )?;
        if let Some(at) = &self.at {
            write!(f, " <span class=\"dim\">({})</span>", Escaped(at))?;
        }
        writeln!(f, "</li>")
    }
}
