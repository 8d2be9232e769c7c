//! *Page*: a mount as something to look at: how long its steps took, and the receipt.

use kvmem::arena::Receipt;
use kvmem_report::{Bars, Chapter, Scale, Section, Table};

/// How long each step took, in seconds.
pub(super) fn steps<const N: usize>(steps: [(&str, f64); N]) -> Section {
    let mut bars = Bars::new("Steps, less is better", "seconds", Scale::Linear);
    let mut table = Table::new(["", "seconds"]);
    for (step, seconds) in steps {
        bars.group(step).bar("seconds", seconds);
        table = table.row([step.to_owned(), format!("{seconds:.6}")]);
    }
    Section::new("Registering").plot(bars.plot()).table(table)
}

/// The receipt, range by range.
pub(crate) fn receipt(receipt: &Receipt) -> Section {
    let head = ["range", "bytes", "asked", "got", "resident", "node", "s", "GiB/s", "why"];
    let table = receipt.ranges.iter().fold(Table::new(head), |table, part| {
        let why: Vec<String> = part.fallbacks.iter().map(ToString::to_string).collect();
        table.row([
            format!("{:#x}..{:#x}", part.range.start, part.range.end),
            part.range.len().to_string(),
            part.requested.to_string(),
            part.got.to_string(),
            part.resident_bytes.to_string(),
            part.nodes.to_string(),
            format!("{:.4}", part.seconds),
            format!("{:.2}", part.gib_per_s),
            why.join("; "),
        ])
    });
    // The first line is the sum; what follows is in the table.
    let text = receipt.to_string();
    Section::new("Receipt").text(text.lines().next().unwrap_or_default()).table(table)
}

/// A page with these sections.
pub(super) fn page(size: u64, sections: impl IntoIterator<Item = Section>) -> kvmem_report::Page {
    let chapter = Chapter::new(indicatif::BinaryBytes(size).to_string())
        .line(format!("kvmem {}", env!("CARGO_PKG_VERSION")))
        .line(kvmem_bench::machine::Machine::here().to_string());
    kvmem_report::Page::new("kvmem mount")
        .chapter(sections.into_iter().fold(chapter, Chapter::section))
}
