//! *Page*: the plots of a mount: the times of its steps, and the receipt.

use kvmem::arena::Receipt;
use kvmem::register::{MountReport, MountTimings};
use kvmem_cli::findings::Mounted;
use kvmem_report::{Bars, Chapter, Page, Scale, Section, Table};

use super::time_line::TimeLine;

/// Draws the page of memory that was mounted.
pub(super) fn page(mounted: &Mounted<'_>, line: &TimeLine) -> Page {
    let machine = kvmem_bench::machine::Machine::here();
    let chapter = Chapter::new(indicatif::BinaryBytes(mounted.size).to_string())
        .line(format!("kvmem {}", env!("CARGO_PKG_VERSION")))
        .line(machine.to_string());
    let receipt = receipt(mounted.receipt);
    let chapter = match (mounted.plan, mounted.registered) {
        (Some(plan), _) => {
            chapter.section(receipt).section(Section::new("Plan").literal(plan.to_string()))
        }
        (None, Some(registered)) => {
            chapter.section(line.section()).section(registrations(registered)).section(receipt)
        }
        (None, None) => chapter.section(line.section()).section(receipt),
    };
    Page::new("kvmem mount").chapter(chapter)
}

/// Draws the registrations as a section of a page.
fn registrations(mounted: &MountReport) -> Section {
    let MountTimings { map, plan, populate, register, unregister, .. } = mounted.seconds;
    let steps = [
        ("map", map),
        ("plan", plan),
        ("populate", populate),
        ("register", register),
        ("unregister", unregister),
    ];
    self::steps(steps)
        .literal(mounted.outcome.to_string())
        .text(format!("chosen: {}", mounted.chosen))
}

/// Draws the seconds of each step.
fn steps<const N: usize>(steps: [(&str, f64); N]) -> Section {
    let mut bars = Bars::new("Steps, less is better", "seconds", Scale::Linear);
    let mut table = Table::new(["", "seconds"]);
    for (step, seconds) in steps {
        bars.group(step).bar("seconds", seconds);
        table = table.row([step.to_owned(), format!("{seconds:.6}")]);
    }
    Section::new("Registering").plot(bars.plot()).table(table)
}

/// Shows the receipt, range by range.
fn receipt(receipt: &Receipt) -> Section {
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
