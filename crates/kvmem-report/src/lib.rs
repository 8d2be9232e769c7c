//! Readable pages: plots, tables and verdicts in one file.
//!
//! A [`Page`] is one HTML file that needs nothing else: no script, no font, no network; a policy in
//! the file forbids all three. It fits a phone and follows the reader's choice of light or dark.
//! Everything shown is text, and all input is escaped.
//!
//! - [`page`]: a page consists of chapters, a chapter of sections, a section of parts.
//! - [`bars`], [`lines`], [`spans`], [`heat`]: the kinds of plots. Each becomes a [`Plot`]: an
//!   inline SVG with a title and a description for screen readers.
//! - [`ink`]: roles of colours, which the page's style maps to colours.
//! - [`axis`]: scales, and the choice of their ends.
//!
//! This crate knows nothing about the meaning of the figures.
//!
//! ```
//! use kvmem_report::{Bars, Chapter, Page, Scale, Section, Table};
//!
//! let mut bars = Bars::new("Time of a call", "ns", Scale::Log);
//! bars.group("64 B").bar("ours", 5.3).bar("theirs", 71.6);
//! let table = Table::new(["", "ours", "theirs"]).row(["64 B", "5.3", "71.6"]);
//! let section = Section::new("calls").plot(bars.plot()).table(table);
//! let page = Page::new("Calls").chapter(Chapter::new("All calls").section(section)).to_string();
//! assert!(page.starts_with("<!doctype html>") && page.contains("<svg role=\"img\""));
//! ```

pub mod axis;
pub mod bars;
mod escape;
pub mod heat;
pub mod ink;
pub mod lines;
pub mod page;
mod plot;
pub mod spans;

pub use axis::Scale;
pub use bars::Bars;
pub use heat::Heat;
pub use lines::Lines;
pub use page::{Chapter, Page, Section, Table, Verdict};
pub use plot::Plot;
pub use spans::Spans;
