//! *Report* of `kvmem tier bench`: text, JSON and page.

use std::fmt;

use indicatif::BinaryBytes;
use kvmem_bench::machine::Machine;
use kvmem_report::{Bars, Chapter, Page, Scale, Section, Table};
use serde::Serialize;

/// The figures of a run.
#[derive(Serialize)]
pub(super) struct TierBenchReport {
    pub(super) suite: &'static str,
    pub(super) version: &'static str,
    pub(super) machine: Machine,
    pub(super) file: String,
    pub(super) access: String,
    /// Bytes of the tier, and of the part for plain transfers.
    pub(super) tier_bytes: u64,
    /// Values of a call, and transfers in flight.
    pub(super) depth: u32,
    pub(super) rows: Vec<TierBenchRow>,
}

/// Values of one size, stored or fetched.
#[derive(Serialize)]
pub(super) struct TierBenchRow {
    pub(super) value_bytes: u64,
    /// "store", which a plain write is compared with, or "fetch", with a plain read.
    pub(super) transfer: &'static str,
    pub(super) turns: u64,
    pub(super) tier: PassFigures,
    pub(super) plain: PassFigures,
    /// Speed of the tier over that of plain transfers.
    pub(super) speed_ratio: f64,
    /// Processor time of the tier over that of plain transfers.
    pub(super) cpu_ratio: f64,
}

/// Medians of all passes.
#[derive(Serialize)]
pub(super) struct PassFigures {
    /// 10^9 bytes of values in a second.
    pub(super) gb_per_s: f64,
    /// Seconds of processor time for 10^9 bytes, with the kernel's.
    pub(super) cpu_s_per_gb: f64,
}

/// Heads of the columns.
const HEAD: [&str; 9] = [
    "values",
    "transfer",
    "tier GB/s",
    "plain GB/s",
    "ratio",
    "tier s/GB",
    "plain s/GB",
    "ratio",
    "turns",
];

/// What the columns mean.
const MEANING: &str = "GB/s: values in 10^9 bytes a second. s/GB: processor time of the process, \
                       the kernel's included.\nA plain transfer writes or reads the same bytes of \
                       the same file at the same depth, without a tier.\n";

impl TierBenchRow {
    /// The size of the values, without rounding.
    fn size(&self) -> String {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        match self.value_bytes {
            bytes if bytes.is_multiple_of(MIB) => format!("{} MiB", bytes / MIB),
            bytes if bytes < MIB && bytes.is_multiple_of(KIB) => format!("{} KiB", bytes / KIB),
            bytes => format!("{bytes} B"),
        }
    }

    fn cells(&self) -> [String; 9] {
        [
            self.size(),
            self.transfer.to_owned(),
            format!("{:.2}", self.tier.gb_per_s),
            format!("{:.2}", self.plain.gb_per_s),
            format!("{:.2}", self.speed_ratio),
            format!("{:.3}", self.tier.cpu_s_per_gb),
            format!("{:.3}", self.plain.cpu_s_per_gb),
            format!("{:.2}", self.cpu_ratio),
            self.turns.to_string(),
        ]
    }
}

impl TierBenchReport {
    fn about(&self) -> String {
        format!(
            "{}: {}, depth {}, {} each for the tier and for plain transfers",
            self.file,
            self.access,
            self.depth,
            BinaryBytes(self.tier_bytes)
        )
    }
}

impl fmt::Display for TierBenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kvmem {} · tier\n{}\n{}\n", self.version, self.machine, self.about())?;
        let rows: Vec<[String; 9]> = self.rows.iter().map(TierBenchRow::cells).collect();
        let head = HEAD.map(str::to_owned);
        let width = |column: usize| {
            let cells = rows.iter().chain([&head]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        for row in [&head].into_iter().chain(&rows) {
            let mut line = format!("{:<w$}  {:<v$}", row[0], row[1], w = width(0), v = width(1));
            for (column, cell) in row.iter().enumerate().skip(2) {
                line += &format!("  {cell:>w$}", w = width(column));
            }
            writeln!(f, "{line}")?;
        }
        write!(f, "\n{MEANING}")
    }
}

/// Draws the page.
pub(super) fn page(report: &TierBenchReport) -> Page {
    let speed = bars("Speed, more is better", "GB/s", report, |pass| pass.gb_per_s);
    let cost = bars("Processor time, less is better", "s/GB", report, |pass| pass.cpu_s_per_gb);
    let table = report.rows.iter().fold(Table::new(HEAD), |table, row| table.row(row.cells()));
    let section =
        Section::new("Tier and plain transfers").text(MEANING).plot(speed.plot()).plot(cost.plot());
    let chapter = Chapter::new("Disk tier")
        .line(format!("kvmem {}", report.version))
        .line(report.machine.to_string())
        .line(report.about());
    Page::new("kvmem tier bench").chapter(chapter.section(section.table(table)))
}

/// Draws a figure of both sides for each row.
fn bars(
    title: &str,
    unit: &str,
    report: &TierBenchReport,
    figure: fn(&PassFigures) -> f64,
) -> Bars {
    let mut bars = Bars::new(title, unit, Scale::Linear);
    for row in &report.rows {
        bars.group(format!("{}, {}", row.transfer, row.size()))
            .bar("tier", figure(&row.tier))
            .bar("plain", figure(&row.plain));
    }
    bars
}
