//! *Page*: the plots of the tour: the limits, the pool, its workload, and every benchmark.

use indicatif::HumanCount;
use kvmem::arena::preflight::{Report, Value};
use kvmem::pool::PoolReport;
use kvmem_report::{Bars, Chapter, Lines, Scale, Section, Table};

use super::disk::OnDisk;
use super::node::OnNode;
use super::sampling::TourSample;
use super::serving::Served;
use super::setting_up::SetUp;
use super::telling::{Missing, bytes};
use crate::address_map;
use crate::mount_command::receipt;

/// Shows the limits, and what the machine lacks.
pub(super) fn doctor(report: &Report, missing: &[Missing]) -> Chapter {
    let head = ["check", "verdict", "value", "need", "why"];
    let table = report.checks.iter().fold(Table::new(head), |table, check| {
        let need = check.need.as_ref().map_or_else(|| "–".to_owned(), Value::to_string);
        let (verdict, value) = (check.verdict.to_string(), check.value.to_string());
        table.row([check.name.to_string(), verdict, value, need, check.why.clone()])
    });
    let absent = missing.iter().fold(
        Table::new(["missing", "why it matters", "remedy"]),
        |table, missing| {
            table.row([missing.what.clone(), missing.why.clone(), missing.remedies.join("; or ")])
        },
    );
    Chapter::new("This machine")
        .line(format!("kvmem {}, a tour", env!("CARGO_PKG_VERSION")))
        .line(kvmem_bench::machine::Machine::here().to_string())
        .section(Section::new("What was not there").table(absent))
        .section(
            Section::new(format!("Limits, held against {}", report.requirements))
                .text(report.tally().to_string())
                .table(table),
        )
}

/// Shows the pages of the pool, the reasons, and the work of each thread.
pub(super) fn pool(set_up: &SetUp) -> Chapter {
    let SetUp { report, line, sizing, shown, .. } = set_up;
    let chapter = Chapter::new("Pool")
        .line(format!("{} on {}", bytes(report.capacity_bytes), registrars(report)))
        .section(choices(report, &sizing.why))
        .section(steps(report))
        .section(line.section());
    let chapter =
        [("Registration", Some(report)), ("A small pool, registered to show it", shown.as_ref())]
            .into_iter()
            .filter_map(|(title, report)| {
                Some(Section::new(title).literal(report?.registered.as_ref()?.to_string()))
            })
            .fold(chapter, Chapter::section);
    chapter.section(receipt(&report.receipt))
}

fn registrars(report: &PoolReport) -> String {
    if report.devices.is_empty() { "no registrar".to_owned() } else { report.devices.join(", ") }
}

fn choices(report: &PoolReport, size: &str) -> Section {
    let table = Table::new(["", "chosen", "why"]);
    let table = table.row(["size".to_owned(), bytes(report.capacity_bytes), size.to_owned()]);
    let table = report.choices.iter().fold(table, |table, choice| {
        table.row([choice.what.clone(), choice.chosen.clone(), choice.why.clone()])
    });
    let hot: Vec<String> = report.hot_sizes.iter().map(u64::to_string).collect();
    let table = table.row([
        "hot sizes".to_owned(),
        hot.join(", "),
        "the objects of the models that are served".to_owned(),
    ]);
    Section::new("What was chosen").table(table)
}

fn steps(report: &PoolReport) -> Section {
    let mut bars = Bars::new("Steps, less is better", "seconds", Scale::Linear);
    for step in &report.steps {
        bars.group(name(&step.what)).bar("seconds", step.seconds);
    }
    Section::new("How long it took").plot(bars.plot())
}

/// The step of mapping, which also makes all pages resident.
fn name(step: &str) -> &str {
    if step == "map" { "map and populate" } else { step }
}

/// Shows the workload.
pub(super) fn served(served: &Served) -> Chapter {
    let chapter = Chapter::new("KV workload").line(format!(
        "{} requests for the KV cache of three models in pages of {} token(s), {} threads, {:.1} s",
        HumanCount(served.requests),
        served.page_tokens,
        super::serving::THREADS,
        served.seconds
    ));
    let sampling = &served.sampling;
    let maps = sampling.samples().iter().map(|sample| (gib(sample.requested), &sample.map));
    chapter
        .section(over_time(sampling.samples()))
        .section(address_map::over_time("GiB asked for", sampling.capacity(), maps))
        .section(figures(served))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Draws utilization and hit rate.
fn over_time(samples: &[TourSample]) -> Section {
    let mut lines = Lines::new(
        "Utilization of the pool, and hit rate",
        ("GiB asked for", Scale::Linear),
        ("share", Scale::Linear),
    );
    let share =
        |hits: u64, lookups: u64| if lookups > 0 { hits as f64 / lookups as f64 } else { 0.0 };
    lines.line(
        "utilization",
        samples.iter().map(|sample| (gib(sample.requested), sample.utilization)),
    );
    lines.line(
        "hit rate so far",
        samples.iter().map(|sample| (gib(sample.requested), share(sample.hits, sample.lookups))),
    );
    let lately = samples.windows(2).filter(|two| two[1].lookups > two[0].lookups).map(|two| {
        (gib(two[1].requested), share(two[1].hits - two[0].hits, two[1].lookups - two[0].lookups))
    });
    lines.line("hit rate since the last sample", lately);
    let head = ["GiB asked for", "utilization", "hit rate so far", "evictions", "free ranges"];
    let table = samples.iter().fold(Table::new(head), |table, sample| {
        table.row([
            format!("{:.2}", gib(sample.requested)),
            format!("{:.4}", sample.utilization),
            format!("{:.4}", share(sample.hits, sample.lookups)),
            sample.evictions.to_string(),
            sample.map.free_ranges().to_string(),
        ])
    });
    Section::new("Over time").plot(lines.plot()).table(table)
}

fn figures(served: &Served) -> Section {
    let Served { stats, room, .. } = served;
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let rows = [
        ("objects found", percent(stats.hit_rate())),
        ("objects written", HumanCount(stats.insertions).to_string()),
        ("objects evicted", HumanCount(stats.evictions).to_string()),
        ("bytes written", bytes(served.written_bytes)),
        ("bytes verified", bytes(served.verified_bytes)),
        ("GB/s, both", format!("{:.2}", served.gb_per_s())),
        (
            "utilization since full, mean",
            served.utilization.map_or_else(|| "never full".to_owned(), percent),
        ),
        ("room for an object: p50 ns", room.p50.to_string()),
        ("room for an object: p99 ns", room.p99.to_string()),
        ("mismatches", served.wrong.len().to_string()),
    ];
    let table = rows.into_iter().fold(Table::new(["", "found"]), |table, (what, found)| {
        table.row([what.to_owned(), found])
    });
    Section::new("Figures").table(table)
}

/// Shows the disk tier.
pub(super) fn on_disk(disk: &OnDisk) -> Chapter {
    let mut bars = Bars::new("Speed, more is better", "GB/s", Scale::Linear);
    for (name, phase) in [
        ("memory to disk", disk.stored),
        ("disk to memory", disk.fetched),
        ("after opening again", disk.again),
    ] {
        bars.group(name).bar("GB/s", phase.gb_per_s());
    }
    let stats = &disk.stats;
    let rows = [
        ("values", HumanCount(disk.values).to_string()),
        ("bytes of a value", bytes(disk.value_bytes)),
        ("bytes of the cache in memory", bytes(disk.cache_bytes)),
        ("bytes of the file", bytes(disk.tier_bytes)),
        ("transferred", disk.access.to_owned()),
        ("bytes of values written", bytes(stats.written_bytes)),
        ("bytes of the index written", bytes(stats.metadata_bytes)),
        ("written for each byte", format!("{:.4}", disk.write_amplification())),
        ("memory of the index", bytes(stats.index_bytes)),
        ("seconds to open it again", format!("{:.4}", disk.open_seconds)),
        ("values found then", HumanCount(disk.found).to_string()),
        ("mismatches", disk.wrong.len().to_string()),
    ];
    let table = rows.into_iter().fold(Table::new(["", "found"]), |table, (what, found)| {
        table.row([what.to_owned(), found])
    });
    Chapter::new("Disk")
        .line("Values that memory has no room for, in a local file; closed, and opened again")
        .section(Section::new("Three ways").plot(bars.plot()).table(table))
}

/// The node: what a killed engine and a killed server cost.
pub(super) fn on_node(node: &OnNode) -> Chapter {
    let rows = [
        ("values", HumanCount(node.values).to_string()),
        ("bytes of a value", bytes(node.value_bytes)),
        ("bytes of the memory", bytes(node.memory_bytes)),
        ("stored in place, GB/s", format!("{:.2}", node.stored.gb_per_s())),
        ("ms until what a killed engine had is free", format!("{:.1}", 1e3 * node.engine_seconds)),
        ("ms until a killed server is replaced", format!("{:.1}", 1e3 * node.server_seconds)),
        ("values found then", HumanCount(node.found).to_string()),
        ("faults", node.wrong.len().to_string()),
    ];
    let table = rows.into_iter().fold(Table::new(["", "found"]), |table, (what, found)| {
        table.row([what.to_owned(), found])
    });
    Chapter::new("Node")
        .line("Values that belong to no engine: an engine was killed, and then the server")
        .section(Section::new("What survives").table(table))
}
