//! The report as text.
//!
//! Bump rows share a line for each size and number of threads, with the contenders side by side;
//! page rows share a line for each kind of pages. A dash marks a missing row.

use std::fmt::{self, Display, Formatter};

use super::{ArenaContenderId, ArenaReport, ArenaRow, Op};
use crate::columns::{Columns, count, goals, strings};

impl Display for ArenaReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, {} and {} repetition(s), {:.0} s",
            self.version, self.suite, self.bump_reps, self.page_reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        for op in Op::ALL {
            let rows: Vec<&ArenaRow> = self.rows.iter().filter(|row| row.op == op).collect();
            if !rows.is_empty() {
                writeln!(f, "\n{}", title(op))?;
                write!(
                    f,
                    "{}",
                    if op == Op::Map { self.mapped(&rows) } else { side_by_side(&rows) }
                )?;
            }
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nNot measured")?;
            for skipped in &self.skipped {
                let pages = skipped.pages.map_or_else(String::new, |pages| format!(", {pages}"));
                writeln!(f, "  {}{pages}: {}", skipped.op, skipped.reason)?;
            }
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

impl ArenaReport {
    pub(super) fn mapped(&self, rows: &[&ArenaRow]) -> Columns {
        let mut columns = Columns::new(strings(["", "bytes", "ms", "bytes resident"]));
        for row in rows {
            let ms = row.ns_per_op.map_or_else(|| "–".to_owned(), |ns| format!("{:.3}", ns / 1e6));
            let resident = count(self.mapped_resident_bytes);
            columns.push([row.contender.to_string(), count(Some(row.size_bytes)), ms, resident]);
        }
        columns
    }
}

pub(super) fn title(op: Op) -> &'static str {
    match op {
        Op::Bump => "bump: ns of each thread's processor time per allocation",
        Op::BumpFull => "bump-full: ns per allocation that fails because the arena is full",
        Op::Map => "map: address space without memory",
        Op::Populate => {
            "populate: GiB/s mapped and made resident; the number is the threads', auto chooses it"
        }
        Op::Discard => "discard: GiB/s returned",
    }
}

/// Builds a table with a line for each size and number of threads, or for each kind of pages, and a
/// column for each contender.
pub(super) fn side_by_side(rows: &[&ArenaRow]) -> Columns {
    let with_pages = rows.iter().any(|row| row.pages.is_some());
    let line_of = |row: &ArenaRow| match row.pages {
        Some(pages) => format!("{pages}, {} MiB", row.size_bytes >> 20),
        None => format!("{} B, {} thread(s)", row.size_bytes, row.threads),
    };
    // The library's number of threads is part of its column; the number that `auto` chose differs
    // from line to line.
    let column_of = |row: &ArenaRow| match row.contender {
        ArenaContenderId::Kvmem if with_pages => (row.contender, row.threads),
        other => (other, 0),
    };
    let mut columns: Vec<(ArenaContenderId, u32)> = rows.iter().map(|row| column_of(row)).collect();
    columns.sort_unstable();
    columns.dedup();
    let title = |&(contender, threads): &(ArenaContenderId, u32)| match threads {
        0 => contender.to_string(),
        threads => format!("{contender} {threads}"),
    };
    let mut table = Columns::new([String::new()].into_iter().chain(columns.iter().map(title)));
    let mut lines: Vec<String> = Vec::new();
    for row in rows {
        let line = line_of(row);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    for line in lines {
        let cell = |column: &(ArenaContenderId, u32)| {
            let row = rows.iter().find(|row| line_of(row) == line && column_of(row) == *column);
            row.map_or_else(|| "–".to_owned(), |row| figure(row))
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        table.push([line].into_iter().chain(cells));
    }
    table
}

fn figure(row: &ArenaRow) -> String {
    let chosen = match row.contender {
        ArenaContenderId::KvmemAuto => format!(" ({})", row.threads),
        _ => String::new(),
    };
    match (row.gib_per_s, row.ns_per_op) {
        (Some(rate), _) => format!("{rate:.2}{chosen}"),
        (None, Some(ns)) => format!("{ns:.1}"),
        (None, None) => "–".to_owned(),
    }
}
