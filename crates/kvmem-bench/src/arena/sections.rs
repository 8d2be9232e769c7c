//! *Sections*: tables, and plots with times on log scales and rates on linear ones.
//!
//! Bump rows share a line for each size and number of threads, with the contenders side by side;
//! page rows share a line for each kind of pages.

use kvmem_report::{Bars, Scale};

use super::{ArenaContenderId, ArenaRow, Op};
use crate::suite::columns::{Columns, count, dash, decimal, side_by_side};
use crate::suite::{Section, bars};

/// Returns a section for each operation.
pub(super) fn of(rows: &[ArenaRow], mapped_resident_bytes: Option<u64>) -> Vec<Section> {
    let of = |op| {
        let rows: Vec<&ArenaRow> = rows.iter().filter(|row| row.op == op).collect();
        let section = Section::new(title(op));
        match op {
            // The row of one mapping has no plot, only a table.
            Op::Map => section.table(mapped(&rows, mapped_resident_bytes)),
            _ => section.bars(plot(op, &rows)).table(table(&rows)),
        }
    };
    Op::ALL.into_iter().map(of).collect()
}

fn title(op: Op) -> &'static str {
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

fn mapped(rows: &[&ArenaRow], resident_bytes: Option<u64>) -> Columns {
    let mut columns = Columns::new(["", "bytes", "ms", "bytes resident"]);
    for row in rows {
        let ms = decimal(row.ns_per_op.map(|ns| ns / 1e6), 3);
        let resident = count(resident_bytes);
        columns.push([row.contender.to_string(), count(Some(row.size_bytes)), ms, resident]);
    }
    columns
}

/// Returns the name of a row's line: its pages, or its size and number of threads.
fn line(row: &ArenaRow) -> String {
    match row.pages {
        Some(pages) => format!("{pages}, {} MiB", row.size_bytes >> 20),
        None => format!("{} B, {} thread(s)", row.size_bytes, row.threads),
    }
}

/// Builds a table with a column for each contender. Where the library populates, the number of
/// threads is part of its column; the number that `auto` chose differs from line to line.
fn table(rows: &[&ArenaRow]) -> Columns {
    let column = |row: &ArenaRow| match row.contender {
        ArenaContenderId::Kvmem if row.pages.is_some() => (row.contender, row.threads),
        other => (other, 0),
    };
    let mut columns: Vec<(ArenaContenderId, u32)> = rows.iter().map(|row| column(row)).collect();
    columns.sort_unstable();
    columns.dedup();
    let title = |(contender, threads): (ArenaContenderId, u32)| match threads {
        0 => contender.to_string(),
        threads => format!("{contender} {threads}"),
    };
    let columns = columns.into_iter().map(|id| (id, [title(id)]));
    side_by_side(rows, columns, line, column, |row| [figure(row)])
}

fn figure(row: &ArenaRow) -> String {
    let chosen = match row.contender {
        ArenaContenderId::KvmemAuto => format!(" ({})", row.threads),
        _ => String::new(),
    };
    match (row.gib_per_s, row.ns_per_op) {
        (Some(rate), _) => format!("{rate:.2}{chosen}"),
        (None, Some(ns)) => format!("{ns:.1}"),
        (None, None) => dash(),
    }
}

fn plot(op: Op, rows: &[&ArenaRow]) -> Bars {
    let series = |row: &ArenaRow| match (row.contender, row.pages) {
        (ArenaContenderId::Kvmem, Some(_)) => format!("kvmem, {} thread(s)", row.threads),
        (contender, _) => contender.to_string(),
    };
    let ns: fn(&ArenaRow) -> Option<f64> = |row| row.ns_per_op;
    let (about, figure) = match op {
        Op::Populate => (("Speed, more is better", "GiB/s", Scale::Linear), rate as _),
        Op::Discard => (("Speed, more is better", "GiB/s", Scale::Log), rate as _),
        _ => (("Time of a call, less is better", "ns", Scale::Log), ns),
    };
    bars(about, None, rows, line, series, figure)
}

fn rate(row: &ArenaRow) -> Option<f64> {
    row.gib_per_s
}
