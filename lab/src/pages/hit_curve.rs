//! *Page*: the plot of a curve.

use indicatif::BinaryBytes;
use kvmem_report::{Chapter, Lines, Page, Scale, Section, Table};

use kvmem_cli::reuse::curve::HitCurve;
use kvmem_cli::reuse::summary::percent;

/// Bytes of a gibibyte, the unit of the plot.
const GIB: f64 = (1u64 << 30) as f64;

/// Draws the page of a curve.
pub(super) fn page(curve: &HitCurve) -> Page {
    let summary = &curve.summary;
    let chapter = Chapter::new(format!("{} for {}", summary.trace, summary.model))
        .line(format!("kvmem {}, format {}", summary.version, summary.format));
    Page::new("kvmem trace").chapter(
        chapter
            .section(hit_rate(curve))
            .section(pools(curve))
            .section(Section::new("Figures").literal(summary.to_string())),
    )
}

/// Draws the hit rate by size, with the sizes that reach shares of what is possible.
fn hit_rate(curve: &HitCurve) -> Section {
    let mut lines = Lines::new(
        "Hit rate of LRU by size of the pool",
        ("pool, GiB", Scale::Log),
        ("share of requested bytes", Scale::Linear),
    );
    let gib = |bytes: u64| bytes as f64 / GIB;
    let points = || curve.points.iter();
    lines.line("hit rate", points().map(|row| (gib(row.pool_bytes), row.hit_rate)));
    if !curve.summary.is_exact() {
        for (name, sign) in [("at least", -1.0), ("at most", 1.0)] {
            let bound = |rate: f64, error: f64| (rate + sign * error).clamp(0.0, 1.0);
            lines.faint(
                name,
                points().map(|row| (gib(row.pool_bytes), bound(row.hit_rate, row.error))),
            );
        }
    }
    for mark in &curve.summary.marks {
        let (pool, name) =
            (gib(mark.pool_bytes), format!("{:.0} % of possible", 100.0 * mark.of_max));
        lines.line(name, [(pool, 0.0), (pool, mark.hit_rate)]);
    }
    let head = ["share of the possible hit rate", "hit rate", "pool"];
    let table = curve.summary.marks.iter().fold(Table::new(head), |table, mark| {
        table.row([
            format!("{:.0} %", 100.0 * mark.of_max),
            percent(mark.hit_rate),
            BinaryBytes(mark.pool_bytes).to_string(),
        ])
    });
    let section = Section::new("How much memory to buy");
    if curve.summary.marks.is_empty() {
        return section.text("No block is requested twice, so no pool has hits.");
    }
    section.plot(lines.plot()).table(table)
}

/// Lists the hit rates of some pools.
fn pools(curve: &HitCurve) -> Section {
    let head = ["pool", "hit rate", "±", "share of the possible hit rate"];
    let table = curve.curve.iter().fold(Table::new(head), |table, row| {
        table.row([
            BinaryBytes(row.pool_bytes).to_string(),
            percent(row.hit_rate),
            percent(row.error),
            percent(row.of_max),
        ])
    });
    Section::new("Hit rates of pools").table(table)
}
