//! Reports as chapters of a page.
//!
//! Each suite draws its own report with the functions of this module. The table of the text report
//! follows each plot.

use kvmem_report::{Bars, Chapter, Scale, Section, Verdict};

use crate::columns::short;
use crate::machine::Machine;
use crate::report::Goal;

/// A report that can be drawn.
pub trait Draw {
    /// Returns the whole report: plots, tables, goals, and the rows that were not measured.
    fn chapter(&self) -> Chapter;
}

/// Starts a chapter: the version, the length of the run and the machine.
pub(crate) fn head(
    suite: &str,
    version: &str,
    quick: bool,
    how: &str,
    seconds: f64,
    machine: &Machine,
) -> Chapter {
    let pace = if quick { "quick" } else { "full" };
    Chapter::new(suite)
        .line(format!("kvmem {version}, {pace} run, {how}, {seconds:.0} s"))
        .line(machine.to_string())
}

/// Ends a chapter: the skipped rows with their reasons, and the goals.
pub(crate) fn tail(
    chapter: Chapter,
    skipped: impl IntoIterator<Item = String>,
    goals: &[Goal],
) -> Chapter {
    let absent = skipped.into_iter().fold(Section::new("Not measured"), Section::text);
    let verdicts = goals.iter().map(|goal| Verdict {
        what: goal.name.clone(),
        figure: short(goal.value),
        limit: format!("{} {}", if goal.at_least { "≥" } else { "≤" }, short(goal.limit)),
        met: goal.met(),
        at: goal.at.clone(),
    });
    chapter.section(absent).section(Section::new("Goals").verdicts(verdicts))
}

/// Builds a bar plot of one figure of all rows that have it: in groups by `group`, side by side by
/// `series`; `names` are series that keep their colours in all plots.
pub(crate) fn bars<R>(
    (title, unit, scale): (&str, &str, Scale),
    names: impl IntoIterator<Item = String>,
    rows: &[&R],
    group: impl Fn(&R) -> String,
    series: impl Fn(&R) -> String,
    figure: impl Fn(&R) -> Option<f64>,
) -> Bars {
    let mut bars = Bars::new(title, unit, scale).series(names);
    for row in rows {
        if let Some(figure) = figure(row) {
            bars.group(group(row)).bar(series(row), figure);
        }
    }
    bars
}

/// Builds a section with the plots that are not empty.
pub(crate) fn section(title: &str, bars: impl IntoIterator<Item = Bars>) -> Section {
    let section = Section::new(title.split_whitespace().collect::<Vec<_>>().join(" "));
    bars.into_iter()
        .filter(|bars| !bars.is_empty())
        .fold(section, |section, bars| section.plot(bars.plot()))
}
