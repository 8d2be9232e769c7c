//! *Text*: a report as tables for a terminal.

use std::fmt::{self, Display, Formatter};

use super::columns::Columns;
use super::{Goal, Report, Section, Suite};

impl<S: Suite> Display for Report<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kvmem {} · {} · {}", self.version, self.suite, self.length())?;
        writeln!(f, "{}", self.machine)?;
        for part in parts(S::sections(self)) {
            match part {
                Part::Note(note) => writeln!(f, "\n{note}")?,
                Part::Tables(heading, tables) => {
                    writeln!(f, "\n{heading}")?;
                    for (at, table) in tables.iter().enumerate() {
                        write!(f, "{}{table}", if at > 0 { "\n" } else { "" })?;
                    }
                }
            }
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nNot measured")?;
            for skipped in &self.skipped {
                writeln!(f, "  {skipped}")?;
            }
        }
        if !self.goals.is_empty() {
            write!(f, "\nGoals\n{}", goal_table(&self.goals))?;
        }
        Ok(())
    }
}

/// A part of the text.
enum Part {
    Note(String),
    /// Tables below a heading.
    Tables(String, Vec<Columns>),
}

/// Returns the parts of the text. Sections with the same heading share it, and their tables share a
/// head where they have the same.
fn parts(sections: Vec<Section>) -> Vec<Part> {
    let mut parts = Vec::new();
    for section in sections {
        let heading = match section.scenario {
            Some(_) => capitalized(&section.heading),
            None => section.heading,
        };
        for table in section.tables {
            match parts.last_mut() {
                Some(Part::Tables(other, tables)) if *other == heading => {
                    let joined = match (&section.scenario, tables.last_mut()) {
                        (Some(_), Some(last)) => last.join(table),
                        _ => Some(table),
                    };
                    tables.extend(joined);
                }
                _ => parts.push(Part::Tables(heading.clone(), vec![table])),
            }
        }
        parts.extend(section.note.map(Part::Note));
    }
    parts
}

/// Begins a heading that does not begin with a name with a capital.
fn capitalized(heading: &str) -> String {
    let mut letters = heading.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

/// Builds a table with a line for each goal: the figure, its limit, whether it is met, and where
/// the figure was measured.
fn goal_table(goals: &[Goal]) -> Columns {
    let mut columns = Columns::new(["", "figure", "limit", "", ""]);
    for goal in goals {
        let met = if goal.met() { "met" } else { "MISSED" };
        let at = goal.at.clone().unwrap_or_default();
        columns.push([goal.name.clone(), goal.figure(), goal.bound(), met.to_owned(), at]);
    }
    columns
}
