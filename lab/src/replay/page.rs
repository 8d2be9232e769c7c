//! *Page*: the plots of a replay.

use indicatif::BinaryBytes;
use kvmem_report::{Bars, Chapter, Lines, Page, Scale, Section, Table};

use super::report::ReplayReport;
use super::sampling::{ReplaySample, ReplaySamples};
use crate::address_map;

/// Draws the page of a sampled replay.
pub fn page(report: &ReplayReport, sampling: &ReplaySamples) -> Page {
    let pool = BinaryBytes(report.pool_bytes);
    let maps = sampling.samples().iter();
    let maps = maps.filter_map(|sample| Some((sample.requests as f64, sample.map.as_ref()?)));
    let title = format!("{} on {}, {pool}", report.model, report.contender);
    let chapter = Chapter::new(title)
        .line(format!("kvmem {}, {} requests of {}", report.version, report.requests, report.trace))
        .line(kvmem_bench::machine::Machine::here().to_string());
    Page::new("kvmem replay").chapter(
        chapter
            .section(over_time(sampling.samples()))
            .section(address_map::over_time("requests served", report.pool_bytes, maps))
            .section(free_ranges(sampling.free()))
            .section(Section::new("Figures").literal(report.to_string())),
    )
}

/// Draws utilization and hit rate.
fn over_time(samples: &[ReplaySample]) -> Section {
    let mut lines = Lines::new(
        "Utilization of the pool, and hit rate",
        ("requests served", Scale::Linear),
        ("share", Scale::Linear),
    );
    let at = |sample: &ReplaySample| sample.requests as f64;
    let share = |hits: u64, blocks: u64| if blocks > 0 { hits as f64 / blocks as f64 } else { 0.0 };
    // The first sample stands for everything before it.
    let lately = |number: usize| {
        let (hits, blocks) = number
            .checked_sub(1)
            .map_or((0, 0), |before| (samples[before].hits, samples[before].blocks));
        share(samples[number].hits - hits, samples[number].blocks - blocks)
    };
    lines.line("utilization", samples.iter().map(|sample| (at(sample), sample.utilization)));
    lines.line(
        "hit rate so far",
        samples.iter().map(|sample| (at(sample), share(sample.hits, sample.blocks))),
    );
    lines.line(
        "hit rate since the last sample",
        samples.iter().enumerate().map(|(number, sample)| (at(sample), lately(number))),
    );
    let head = ["requests", "utilization", "hit rate so far", "since the last", "free ranges"];
    let table = samples.iter().enumerate().fold(Table::new(head), |table, (number, sample)| {
        table.row([
            sample.requests.to_string(),
            format!("{:.4}", sample.utilization),
            format!("{:.4}", share(sample.hits, sample.blocks)),
            format!("{:.4}", lately(number)),
            sample.map.as_ref().map_or_else(|| "–".to_owned(), |map| map.free_ranges().to_string()),
        ])
    });
    Section::new("Over time").plot(lines.plot()).table(table)
}

/// Draws the free ranges at the end, by size.
fn free_ranges(free: &[(u64, u64)]) -> Section {
    let mut number = Bars::new("How many there are", "free ranges", Scale::Count);
    let mut bytes = Bars::new("What they amount to", "MiB", Scale::Linear);
    let mut table = Table::new(["size", "free ranges", "bytes"]);
    for (power, &(count, sum)) in free.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
        let size = format!("from {}", BinaryBytes(1 << power));
        number.group(size.clone()).bar("free ranges", count as f64);
        bytes.group(size.clone()).bar("MiB", sum as f64 / f64::from(1 << 20));
        table = table.row([size, count.to_string(), sum.to_string()]);
    }
    let section = Section::new("Free ranges at the end, by size");
    if number.is_empty() {
        return section.text("Nothing is free, or the allocator returns no offsets.");
    }
    section.plot(number.plot()).plot(bytes.plot()).table(table)
}
