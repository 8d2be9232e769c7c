//! *Page* of `kvmem tier verify`: how fast the file was read, and where the damaged values lie.

use indicatif::{BinaryBytes, HumanCount};
use kvmem_report::{Chapter, Lines, Page, Scale, Section, Table, Verdict};
use kvmem_tier::{Contents, Damage, DamagedValue};

use kvmem_cli::findings::Verified;
use kvmem_cli::tier_command::offset;

/// Bytes of a unit of the plots.
const MIB: f64 = (1 << 20) as f64;

/// Draws the page.
pub(super) fn page(verified: &Verified<'_>) -> Page {
    let &Verified { report, contents, damaged, course } = verified;
    let verdict = Verdict {
        what: "damaged values".to_owned(),
        figure: HumanCount(report.damaged).to_string(),
        limit: "= 0".to_owned(),
        met: report.damaged == 0,
        at: None,
    };
    let read = format!(
        "{} values, {} read in {:.2} s; {} entries were dropped.",
        HumanCount(report.values),
        BinaryBytes(report.bytes),
        report.seconds,
        HumanCount(report.dropped_entries)
    );
    let outcome = Section::new("Outcome").text(read);
    let outcome = match &report.repair {
        Some(repair) => outcome.text(format!("{repair}.")),
        None => outcome,
    };
    let mut chapter = Chapter::new("Verification of a disk tier")
        .line(format!("kvmem {}", env!("CARGO_PKG_VERSION")))
        .line(format!("{}: {}", report.file, report.access))
        .section(outcome.verdicts([verdict]))
        .section(Section::new("Reading").plot(reading(course).plot()));
    if !damaged.is_empty() {
        let head = ["digest", "offset", "bytes", "ranges", "damage"];
        let table = report.named.iter().fold(Table::new(head), |table, value| {
            let (offset, len) = (value.offset.to_string(), value.len.to_string());
            table.row([
                value.digest.clone(),
                offset,
                len,
                value.ranges.to_string(),
                value.damage.clone(),
            ])
        });
        let places = places(contents, damaged).plot();
        chapter = chapter.section(Section::new("Damaged values").plot(places).table(table));
    }
    Page::new("kvmem tier verify").chapter(chapter)
}

/// Draws the bytes read by the time.
fn reading(course: &[(f64, u64)]) -> Lines {
    let x = ("seconds", Scale::Linear);
    let mut lines = Lines::new("Bytes read", x, ("MiB", Scale::Linear));
    lines.line("read", course.iter().map(|&(seconds, bytes)| (seconds, bytes as f64 / MIB)));
    lines
}

/// Draws where the damaged values begin, and how long they are.
fn places(contents: &Contents, damaged: &[DamagedValue]) -> Lines {
    let x = ("MiB from the begin of the file", Scale::Linear);
    let mut lines = Lines::new("Damaged values", x, ("bytes", Scale::Linear)).points_only();
    let point = |value: &DamagedValue| {
        (offset(contents, value.entry.start()) as f64 / MIB, value.entry.len as f64)
    };
    let (unread, wrong): (Vec<_>, Vec<_>) =
        damaged.iter().partition(|value| matches!(value.damage, Damage::Device(_)));
    for (name, values) in [("wrong checksum", wrong), ("cannot be read", unread)] {
        if !values.is_empty() {
            lines.line(name, values.into_iter().map(point));
        }
    }
    lines
}
