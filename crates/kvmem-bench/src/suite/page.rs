//! *Page*: a report as a chapter of a page. The tables of a section follow its plots.

use kvmem_report::{Chapter, Section as PageSection, Verdict};

use super::{Goal, Report, Section, Suite};

/// A report that can be drawn.
pub trait Draw {
    /// Returns the whole report: plots, tables, goals, and the rows that were not measured.
    fn chapter(&self) -> Chapter;
}

impl<S: Suite> Draw for Report<S> {
    fn chapter(&self) -> Chapter {
        let chapter = Chapter::new(&self.suite)
            .line(format!("kvmem {}, {}", self.version, self.length()))
            .line(self.machine.to_string());
        let chapter = S::sections(self).into_iter().map(drawn).fold(chapter, Chapter::section);
        let absent = self.skipped.iter().map(ToString::to_string);
        let verdicts = self.goals.iter().map(verdict);
        chapter
            .section(absent.fold(PageSection::new("Not measured"), PageSection::text))
            .section(PageSection::new("Goals").verdicts(verdicts))
    }
}

fn drawn(section: Section) -> PageSection {
    let heading = section.heading.split_whitespace().collect::<Vec<_>>().join(" ");
    let heading = section.scenario.map_or(heading.clone(), |name| format!("{name}: {heading}"));
    let drawn = section.plots.into_iter().fold(PageSection::new(heading), PageSection::plot);
    let drawn = section.tables.into_iter().fold(drawn, |drawn, table| drawn.table(table.into()));
    section.note.into_iter().fold(drawn, PageSection::text)
}

fn verdict(goal: &Goal) -> Verdict {
    Verdict {
        what: goal.name.clone(),
        figure: goal.figure(),
        limit: goal.bound(),
        met: goal.met(),
        at: goal.at.clone(),
    }
}
