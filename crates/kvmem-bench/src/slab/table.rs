//! The report as text: one line for each number of threads, the contenders side by side.

use std::fmt::{self, Display, Formatter};

use super::{Pattern, SlabContenderId, SlabReport, SlabRow};
use crate::columns::{Columns, goals};

impl Display for SlabReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let pace = if self.quick { "quick" } else { "full" };
        writeln!(
            f,
            "kvmem {} · {} · {pace} run, seed {}, {} repetition(s), {:.0} s",
            self.version, self.suite, self.seed, self.reps, self.seconds
        )?;
        writeln!(f, "{}", self.machine)?;
        for pattern in Pattern::ALL {
            let rows: Vec<&SlabRow> =
                self.rows.iter().filter(|row| row.pattern == pattern).collect();
            if rows.is_empty() {
                continue;
            }
            writeln!(f, "\n{}", title(pattern))?;
            write!(f, "{}", side_by_side(&rows, |row| Some(format!("{:.1}", row.ns_per_pair))))?;
            if rows.iter().any(|row| row.rss_bytes.is_some()) {
                writeln!(f, "\n{pattern}: MiB that became resident")?;
                let mebibytes = |row: &SlabRow| {
                    row.rss_bytes.map(|bytes| format!("{:.2}", bytes as f64 / (1 << 20) as f64))
                };
                write!(f, "{}", side_by_side(&rows, mebibytes))?;
            }
        }
        if !self.skipped.is_empty() {
            writeln!(f, "\nNot measured")?;
            for skipped in &self.skipped {
                writeln!(f, "  {}: {}", skipped.contender, skipped.reason)?;
            }
        }
        if !self.goals.is_empty() {
            writeln!(f, "\nGoals")?;
            write!(f, "{}", goals(&self.goals))?;
        }
        Ok(())
    }
}

pub(super) fn title(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random => {
            "random: ns of a processor per allocation and free, blocks of random size, every \
             second one replaced"
        }
        Pattern::Fixed => "fixed: the same with blocks of one size",
        Pattern::ProducerConsumer => {
            "producer-consumer: ns of a processor per block that one thread allocates and another \
             one frees"
        }
    }
}

/// Builds a table with a line for each size and number of threads; a dash marks a missing figure.
pub(super) fn side_by_side(
    rows: &[&SlabRow],
    figure: impl Fn(&SlabRow) -> Option<String>,
) -> Columns {
    let contenders: Vec<SlabContenderId> = SlabContenderId::ALL
        .into_iter()
        .filter(|&id| rows.iter().any(|row| row.contender == id))
        .collect();
    let mut table =
        Columns::new([String::new()].into_iter().chain(contenders.iter().map(ToString::to_string)));
    let mut lines: Vec<(u32, u32)> =
        rows.iter().map(|row| (row.max_block_bytes, row.threads)).collect();
    lines.sort_unstable();
    lines.dedup();
    for line in lines {
        let of = |&id: &SlabContenderId| {
            rows.iter()
                .find(|row| row.contender == id && (row.max_block_bytes, row.threads) == line)
        };
        let cell = |id| of(id).and_then(|row| figure(row)).unwrap_or_else(|| "–".to_owned());
        let head = format!("{} B, {} thread(s)", line.0, line.1);
        table.push([head].into_iter().chain(contenders.iter().map(cell)));
    }
    table
}
