//! *Sections*: tables and plots, numbers of threads from top to bottom, contenders side by side.

use kvmem_report::Scale;

use super::{Pattern, SlabContenderId, SlabRow};
use crate::suite::columns::{Columns, decimal, side_by_side};
use crate::suite::{Section, bars};

/// Returns the sections of each pattern: times, and memory where it is known.
pub(super) fn of(rows: &[SlabRow]) -> Vec<Section> {
    let of = |pattern: Pattern| {
        let rows: Vec<&SlabRow> = rows.iter().filter(|row| row.pattern == pattern).collect();
        let ns = |row: &SlabRow| Some(row.ns_per_pair);
        let mebibytes = |row: &SlabRow| row.rss_bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
        let times = Section::new(title(pattern)).table(table(&rows, ns, 1));
        let memory = Section::new(format!("{pattern}: MiB that became resident"));
        let with_memory: Vec<&SlabRow> =
            if rows.iter().any(|row| row.rss_bytes.is_some()) { rows.clone() } else { Vec::new() };
        let memory = memory.table(table(&with_memory, mebibytes, 2));
        [
            plotted(times, &rows, ("ns per allocation and free", Scale::Log), ns),
            plotted(memory, &rows, ("MiB resident", Scale::Linear), mebibytes),
        ]
    };
    Pattern::ALL.into_iter().flat_map(of).collect()
}

fn title(pattern: Pattern) -> &'static str {
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

/// Builds a table with a line for each size and number of threads.
fn table(rows: &[&SlabRow], figure: fn(&SlabRow) -> Option<f64>, digits: usize) -> Columns {
    side_by_side(
        rows,
        SlabContenderId::ALL.map(|id| (id, [id.to_string()])),
        |row| format!("{} B, {} thread(s)", row.max_block_bytes, row.threads),
        |row| row.contender,
        |row| [decimal(figure(row), digits)],
    )
}

/// Adds a plot for each size of blocks.
fn plotted(
    section: Section,
    rows: &[&SlabRow],
    (unit, scale): (&str, Scale),
    figure: fn(&SlabRow) -> Option<f64>,
) -> Section {
    let mut sizes: Vec<u32> = rows.iter().map(|row| row.max_block_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().fold(section, |section, bytes| {
        let rows: Vec<&SlabRow> =
            rows.iter().copied().filter(|row| row.max_block_bytes == bytes).collect();
        let about = format!("Blocks of {bytes} B at most, less is better");
        section.bars(bars(
            (&about, unit, scale),
            SlabContenderId::ALL.map(|id| id.to_string()),
            &rows,
            |row| format!("{} thread(s)", row.threads),
            |row| row.contender.to_string(),
            figure,
        ))
    })
}
