//! *Page*: the plots of a mount: the times of its steps, and the receipt.

use kvmem::arena::Receipt;
use kvmem_report::{Bars, Chapter, Scale, Section, Table};

/// Draws the seconds of each step.
pub(super) fn steps<const N: usize>(steps: [(&str, f64); N]) -> Section {
    let mut bars = Bars::new("Steps, less is better", "seconds", Scale::Linear);
    let mut table = Table::new(["", "seconds"]);
    for (step, seconds) in steps {
        bars.group(step).bar("seconds", seconds);
        table = table.row([step.to_owned(), format!("{seconds:.6}")]);
    }
    Section::new("Registering").plot(bars.plot()).table(table)
}

/// Shows the receipt, range by range.
pub(crate) fn receipt(receipt: &Receipt) -> Section {
    let head = ["range", "bytes", "requested", "got", "resident", "node", "s", "GiB/s", "why"];
    let table = receipt.ranges.iter().fold(Table::new(head), |table, part| {
        let why: Vec<String> = part.fallbacks.iter().map(ToString::to_string).collect();
        table.row([
            format!("{:#x}..{:#x}", part.range.start, part.range.end),
            part.range.len().to_string(),
            part.requested.to_string(),
            part.obtained.to_string(),
            part.resident_bytes.to_string(),
            part.nodes.to_string(),
            format!("{:.4}", part.seconds),
            format!("{:.2}", part.gib_per_s),
            why.join("; "),
        ])
    });
    // The first line is the sum; the table has the rest.
    let text = receipt.to_string();
    Section::new("Receipt").text(text.lines().next().unwrap_or_default()).table(table)
}

/// Makes a page of these sections.
pub(super) fn page(size: u64, sections: impl IntoIterator<Item = Section>) -> kvmem_report::Page {
    let chapter = Chapter::new(indicatif::BinaryBytes(size).to_string())
        .line(format!("kvmem {}", env!("CARGO_PKG_VERSION")))
        .line(kvmem_bench::machine::Machine::here().to_string());
    kvmem_report::Page::new("kvmem mount")
        .chapter(sections.into_iter().fold(chapter, Chapter::section))
}
