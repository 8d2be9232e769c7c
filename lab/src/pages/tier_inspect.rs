//! *Page* of `kvmem tier inspect`: what the file is used for, how long its values are, and where
//! they lie.

use indicatif::{BinaryBytes, HumanCount};
use kvmem_report::{Bars, Chapter, Lines, Page, Scale, Section, Table};
use kvmem_tier::Contents;
use kvmem_tier::format::BLOCK;

use kvmem_cli::tier_command::inspect::{InspectReport, TierFigures};

/// Parts into which the data area is divided for the plot.
const PARTS: u64 = 128;
/// Bytes of a unit of the plots.
const MIB: f64 = (1 << 20) as f64;

/// Draws the page. A tier that cannot be opened has its superblocks and the error.
pub(super) fn page(report: &InspectReport, contents: Option<&Contents>) -> Page {
    let file = format!("{}: {}, {}", report.file, BinaryBytes(report.file_bytes), report.access);
    let mut chapter = Chapter::new("Disk tier")
        .line(format!("kvmem {}", env!("CARGO_PKG_VERSION")))
        .line(file)
        .section(Section::new("Superblocks").table(superblocks(report)));
    if let Some(error) = &report.error {
        chapter = chapter.section(Section::new("It cannot be opened").text(error));
    }
    if let (Some(tier), Some(contents)) = (&report.tier, contents) {
        chapter = chapter
            .line(format!("{}, format {}", tier.identity, tier.format_version))
            .section(space(tier))
            .section(values(tier, contents))
            .section(Section::new("Where the values lie").plot(places(contents).plot()))
            .section(Section::new("As text").literal(tier.to_string()));
    }
    Page::new("kvmem tier inspect").chapter(chapter)
}

fn superblocks(report: &InspectReport) -> Table {
    let copies = ["first", "second"].into_iter().zip(&report.superblocks);
    copies.fold(Table::new(["copy", "state"]), |table, (name, copy)| {
        table.row([name.to_owned(), copy.to_string()])
    })
}

/// Draws what the bytes of the file are used for.
fn space(tier: &TierFigures) -> Section {
    let data = tier.parts.iter().find(|part| part.name == "data").map_or(0, |part| part.bytes);
    let uses = [
        ("values", tier.values.bytes),
        ("padding of values", tier.values.padding_bytes),
        ("free", tier.free_bytes),
        ("quarantined", tier.quarantined_bytes),
        ("index and journals", tier.bytes - data),
    ];
    let mut bars = Bars::new("What the file is used for", "MiB", Scale::Linear);
    let mut table = Table::new(["use", "bytes", "share of the tier"]);
    for (name, bytes) in uses {
        bars.group(name).bar("bytes", bytes as f64 / MIB);
        let share = format!("{:.2} %", 100.0 * bytes as f64 / tier.bytes.max(1) as f64);
        table = table.row([name.to_owned(), bytes.to_string(), share]);
    }
    let parts = Table::new(["part", "offset", "bytes", "in use"]);
    let parts = tier.parts.iter().fold(parts, |table, part| {
        let in_use = if part.in_use { "yes" } else { "no" };
        let (offset, bytes) = (part.offset.to_string(), part.bytes.to_string());
        table.row([part.name.to_owned(), offset, bytes, in_use.to_owned()])
    });
    let section = Section::new("Space").plot(bars.plot()).table(table).table(parts);
    tier.quarantined.iter().enumerate().fold(section, |section, (number, part)| match number {
        0 => section.text(format!(
            "{} part(s) lost what was written; the first one has {} bytes at {}.",
            HumanCount(tier.quarantined.len() as u64),
            part.bytes,
            part.offset
        )),
        _ => section,
    })
}

/// Draws how many values have which length: one group for each power of two.
fn values(tier: &TierFigures, contents: &Contents) -> Section {
    let mut classes = std::collections::BTreeMap::<u64, u64>::new();
    for entry in &contents.entries {
        *classes.entry(entry.len.max(1).next_power_of_two()).or_default() += 1;
    }
    let mut bars = Bars::new("Lengths of the values", "values", Scale::Linear);
    let mut table = Table::new(["length up to", "values"]);
    for (up_to, count) in classes {
        let name = BinaryBytes(up_to).to_string();
        bars.group(format!("up to {name}")).bar("values", count as f64);
        table = table.row([name, count.to_string()]);
    }
    let about = format!(
        "{} values of at most {}; {} of them in several ranges.",
        HumanCount(tier.values.count),
        HumanCount(tier.values.max_count),
        HumanCount(tier.values.scattered)
    );
    let section = Section::new("Values").text(about);
    if bars.is_empty() { section } else { section.plot(bars.plot()).table(table) }
}

/// Draws how much of each part of the data area is in use.
fn places(contents: &Contents) -> Lines {
    let blocks = contents.superblock.layout.data.blocks();
    let width = blocks.div_ceil(PARTS).max(1);
    let mut used = vec![0_u64; blocks.div_ceil(width) as usize];
    for extent in contents.entries.iter().flat_map(|entry| entry.extents.iter()) {
        let (mut at, end) =
            (u64::from(extent.start), u64::from(extent.start) + u64::from(extent.blocks));
        while at < end {
            let part = at / width;
            let next = end.min((part + 1) * width);
            used[part as usize] += next - at;
            at = next;
        }
    }
    let share = |(part, &used): (usize, &u64)| {
        let begin = part as u64 * width;
        let in_part = width.min(blocks - begin);
        let middle = (begin as f64 + in_part as f64 / 2.0) * BLOCK as f64 / MIB;
        (middle, 100.0 * used as f64 / in_part as f64)
    };
    let x = ("MiB from the begin of the data area", Scale::Linear);
    let mut lines = Lines::new("Part in use", x, ("%", Scale::Linear));
    lines.line("in use", used.iter().enumerate().map(share));
    lines
}
