//! *Page*: a replay as something to look at.

use indicatif::BinaryBytes;
use kvmem_report::{Bars, Chapter, Heat, Lines, Page, Scale, Section, Table};

use super::report::Report;
use super::sampling::{Map, Sample, Sampling};

/// The page of a replay that was sampled.
pub fn page(report: &Report, sampling: &Sampling) -> Page {
    let pool = BinaryBytes(report.pool_bytes);
    let title = format!("{} on {}, {pool}", report.model, report.contender);
    let chapter = Chapter::new(title)
        .line(format!("kvmem {}, {} requests of {}", report.version, report.requests, report.trace))
        .line(kvmem_bench::machine::Machine::here().to_string());
    Page::new("kvmem replay").chapter(
        chapter
            .section(over_time(sampling.samples()))
            .section(address_space(sampling.samples(), report.pool_bytes))
            .section(free_ranges(sampling.free()))
            .section(Section::new("Figures").literal(report.to_string())),
    )
}

/// Utilization and hit rate.
fn over_time(samples: &[Sample]) -> Section {
    let mut lines = Lines::new(
        "Utilization of the pool, and hit rate",
        ("requests served", Scale::Linear),
        ("share", Scale::Linear),
    );
    let at = |sample: &Sample| sample.requests as f64;
    let share = |hits: u64, blocks: u64| if blocks > 0 { hits as f64 / blocks as f64 } else { 0.0 };
    // The first is what came before it.
    let lately = |number: usize| {
        let (hits, blocks) =
            number.checked_sub(1).map_or((0, 0), |before| (samples[before].hits, samples[before].blocks));
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
            sample.map.as_ref().map_or_else(|| "–".to_owned(), |map| holes(map).to_string()),
        ])
    });
    Section::new("Over time").plot(lines.plot()).table(table)
}

fn holes(map: &Map) -> u32 {
    map.holes.iter().sum()
}

/// Where objects lie, and into how many pieces what is free is broken.
fn address_space(samples: &[Sample], pool_bytes: u64) -> Section {
    let (unit, name) = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| pool_bytes >= *unit)
        .unwrap_or((1, "B"));
    let range = (0.0, pool_bytes as f64 / unit as f64);
    let heat = |title: &str| Heat::new(title, "requests served", &format!("address, {name}"), range);
    let most = samples
        .iter()
        .filter_map(|sample| sample.map.as_ref()?.holes.iter().max())
        .max()
        .copied()
        .unwrap_or(0);
    let mut used = heat("In use: the fuller the colour the more, from nothing to all");
    let mut broken =
        heat(&format!("Free ranges that begin here: the fuller the colour the more, from 0 to {most}"));
    let mut before = 0.0;
    for sample in samples {
        let Some(map) = &sample.map else { continue };
        let to = sample.requests as f64;
        used.column(before, to, map.used.iter().map(|used| f64::from(*used)));
        let shade = |holes: &u32| f64::from(*holes) / f64::from(most.max(1));
        broken.column(before, to, map.holes.iter().map(shade));
        before = to;
    }
    let section = Section::new("Address space over time");
    if used.is_empty() {
        return section.text("This allocator hands out no places.");
    }
    section
        .plot(used.plot())
        .plot(broken.plot())
        .text("Each cell is a 64th of the pool. What is free in one range is not fragmented: it begins once.")
}

/// The free ranges at the end, by size.
fn free_ranges(free: &[(u64, u64)]) -> Section {
    let mut number = Bars::new("How many there are", "free ranges", Scale::Log);
    let mut bytes = Bars::new("What they amount to", "MiB", Scale::Log);
    let mut table = Table::new(["size", "free ranges", "bytes"]);
    for (power, &(count, sum)) in free.iter().enumerate().filter(|(_, (count, _))| *count > 0) {
        let size = format!("from {}", BinaryBytes(1 << power));
        number.group(size.clone()).bar("free ranges", count as f64);
        bytes.group(size.clone()).bar("MiB", sum as f64 / f64::from(1 << 20));
        table = table.row([size, count.to_string(), sum.to_string()]);
    }
    let section = Section::new("Free ranges at the end, by size");
    if number.is_empty() {
        return section.text("Nothing is free, or the allocator hands out no places.");
    }
    section.plot(number.plot()).plot(bytes.plot()).table(table)
}
