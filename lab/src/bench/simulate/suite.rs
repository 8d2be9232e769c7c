//! The rows and goals.

use std::cell::RefCell;
use std::fmt::Display;

use anyhow::{Context, Result};
use kvmem::cache::Eviction;
use kvmem::offset::OffsetAllocator;
use kvmem::slab::ExtentCache;
use kvmem_testkit::cores::{CoreCosts, WaitPlace, record_waits};
use serde_json::Value;

use super::loops::Setting;
use crate::bench::concurrency::ConcurrencyContenderId::{
    self as Id, Kvmem, KvmemCached, KvmemShards, Mutex, Null,
};
use crate::bench::concurrency::ConcurrencyScenario::{self as Scenario, Fragmented, Pair4K};
use crate::bench::concurrency::contender::{MutexAllocator, NoAllocator};
use crate::bench::contender::kvmem::Sharded;
use crate::bench::suite::{Figures, Run, Turns};

/// Numbers of cores.
const CORES: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// The costs of the Xeon whose 16 cores were measured.
pub(super) const COSTS: CoreCosts = CoreCosts {
    step: 200,
    mispredicted: 6_000,
    change: 5_500,
    fetch: 30_000,
    request: 15_000,
    handoff: 40_000,
    pause: 45_000,
    system_call: 400_000,
    slack: 50_000,
};

/// What was measured there.
struct Record(Vec<Value>);

impl Record {
    fn new() -> Result<Record> {
        let mut rows = Vec::new();
        for text in [
            include_str!("../../../../bench/record/2026-11-28-intel-xeon-16c-concurrency.json"),
            include_str!("../../../../bench/record/2026-11-28-intel-xeon-16c-cache.json"),
            include_str!("../../../../bench/record/2026-11-28-intel-xeon-16c-arena.json"),
        ] {
            let mut record: Value = serde_json::from_str(text).context("a record")?;
            rows.append(record["rows"].as_array_mut().context("a record without rows")?);
        }
        Ok(Record(rows))
    }

    /// Returns the million calls a second of a loop, if it was measured.
    fn rate(&self, table: &str, contender: &str, cores: u32) -> Option<f64> {
        let row = |row: &&Value| row["contender"] == contender && row["threads"] == cores;
        let mut rows = self.0.iter().filter(row);
        match table.strip_prefix("bump-") {
            None => rows.find(|row| row["scenario"] == table)?["mops"].as_f64(),
            Some(size) => {
                let size: u64 = size.parse().ok()?;
                let ns = rows.find(|row| row["op"] == "bump" && row["size_bytes"] == size)?;
                Some(f64::from(cores) * 1e3 / ns["ns_per_op"].as_f64()?)
            }
        }
    }
}

/// Runs the benchmark.
pub(super) fn run(run: &mut Run, places: usize) -> Result<()> {
    run.settings("virtual time");
    let loops = Loops { record: Record::new()?, waits: RefCell::default(), places };
    if places > 0 {
        record_waits();
        run.about(
            "waits",
            "by place: lines of other cores, and ns of waits for them and of pauses, a call",
        );
    }
    let setting = Setting {
        costs: COSTS,
        cores: 1,
        time: run.length(4_000_000, 1_000_000, 100_000),
        calls: run.length(1_000_000, 200_000, 20_000),
        waits: (places > 0).then_some(&loops.waits),
    };
    for scenario in Scenario::ALL {
        let table = scenario.name();
        let mut contenders = vec![Kvmem, KvmemCached];
        contenders.extend([Mutex].iter().filter(|_| matches!(scenario, Fragmented | Pair4K)));
        contenders.extend([KvmemShards].iter().filter(|_| scenario == Fragmented));
        // Random draws, which are not reported, are the loop's own work.
        let own = match loops.record.rate(table, Null.name(), 1) {
            Some(rate) if run.wants(table) => {
                let alone = setting.scenario::<NoAllocator>(scenario, 0)?;
                ((1e6 / rate - 1e6 / alone).max(0.0)) as u64
            }
            _ => 0,
        };
        rows(run, &loops, table, &contenders, |contender: Id, cores| {
            let setting = Setting { cores, ..setting };
            match contender {
                Kvmem => setting.scenario::<OffsetAllocator>(scenario, own),
                KvmemCached => setting.scenario::<ExtentCache>(scenario, own),
                KvmemShards => setting.scenario::<Sharded<8>>(scenario, own),
                Mutex => setting.scenario::<MutexAllocator>(scenario, own),
                _ => setting.scenario::<NoAllocator>(scenario, own),
            }
        })?;
    }
    let policies = ["kvmem", "kvmem-scan"];
    let policy =
        |contender| if contender == "kvmem" { Eviction::Lru } else { Eviction::ScanResistant };
    rows(run, &loops, "get-hit", &policies[..1], |contender, cores| {
        Setting { cores, ..setting }.hits(policy(contender))
    })?;
    rows(run, &loops, "insert-evict", &policies, |contender, cores| {
        Setting { cores, ..setting }.insertions(policy(contender))
    })?;
    for (table, size) in [("bump-64", 64), ("bump-4096", 4096)] {
        rows(run, &loops, table, &["kvmem"], |_, cores| Setting { cores, ..setting }.bump(size))?;
    }
    model(run);
    goals(run);
    Ok(())
}

/// Adds a row that says how far simulated and measured rates are apart.
fn model(run: &mut Run) {
    let others = ["get-hit", "insert-evict", "bump-64", "bump-4096"];
    let tables = Scenario::ALL.map(Scenario::name).into_iter().chain(others);
    let of = |table: &str| {
        let lines = run.lines(table);
        let contenders = lines.iter().flat_map(|line| run.contenders(table, line));
        contenders.flat_map(|one| run.values(table, one, "ratio", |_| true)).collect::<Vec<_>>()
    };
    let ratios = tables.flat_map(of);
    let factors: Vec<f64> = ratios.map(|(ratio, _)| ratio.max(1.0 / ratio)).collect();
    let Some(worst) = factors.iter().copied().max_by(f64::total_cmp) else { return };
    let mean = (factors.iter().map(|one| one.ln()).sum::<f64>() / factors.len() as f64).exp();
    run.about("model", "factor between simulated and measured rates: geometric mean, and largest");
    let figures = Figures::of("mean", mean).with("largest", worst);
    run.row("model", "all measured rows", "factor", figures);
}

/// The goals of a machine with 16 cores, which the suites judge where there is one.
fn goals(run: &mut Run) {
    let rate = |run: &Run, table: &str, id: &str, cores: u32| {
        let line = format!("{cores} core(s)");
        run.values(table, id, "M/s", |of| of == line).pop().map(|(rate, _)| rate)
    };
    let over = |run: &Run, table: &str, id: &str, cores: u32, fewer: u32| {
        let rates = rate(run, table, id, cores).zip(rate(run, table, id, fewer));
        let line = format!("{cores} core(s)");
        rates.map(|(many, one)| (many / one, line)).into_iter().collect::<Vec<_>>()
    };
    for (table, id, cores, least) in [
        ("pair-4k", "kvmem-cached", 16, 10.0),
        ("high-water", "kvmem-cached", 16, 4.0),
        ("fragmented", "kvmem", 16, 6.0),
        ("fragmented", "kvmem-cached", 16, 6.0),
        ("cross-thread", "kvmem-cached", 2, 1.0),
        ("insert-evict", "kvmem", 4, 3.0),
        ("insert-evict", "kvmem", 16, 8.0),
    ] {
        let name = format!("simulated, {table}, {id}: rate of {cores} cores over that of one");
        run.at_least(&name, least, over(run, table, id, cores, 1));
    }
    let falls =
        CORES.windows(2).flat_map(|pair| over(run, "high-water", "kvmem-cached", pair[1], pair[0]));
    let falls = falls.collect();
    let name = "simulated, high-water, kvmem-cached: rate over that of fewer cores";
    run.at_least(name, 1.0, falls);
    let call = rate(run, "bump-64", "kvmem", 8).map(|rate| (8e3 / rate, "8 core(s)".to_owned()));
    run.at_most("simulated, bump-64: ns of a call on 8 cores", 60.0, call.into_iter().collect());
}

/// What all tables have in common.
struct Loops {
    record: Record,
    /// Where the cores waited in the last loop.
    waits: RefCell<Vec<WaitPlace>>,
    /// The number of these places to show.
    places: usize,
}

/// Adds the rows of a table.
fn rows<C: Copy + Display>(
    run: &mut Run,
    loops: &Loops,
    table: &str,
    contenders: &[C],
    rate: impl Fn(C, u32) -> Result<f64>,
) -> Result<()> {
    run.about(
        table,
        "million calls a second of all cores; what 16 cores of a Xeon did; their ratio",
    );
    for cores in CORES {
        let line = format!("{cores} core(s)");
        let mut waits = Vec::new();
        run.turns((table, &line), contenders, Turns::of(1), |contender, _| {
            let simulated = rate(contender, cores)?;
            waits.push((contender, loops.waits.take()));
            let figures = Figures::of("M/s", simulated);
            Ok(match loops.record.rate(table, &contender.to_string(), cores) {
                Some(real) => figures.with("measured", real).with("ratio", simulated / real),
                None => figures,
            })
        })?;
        for (contender, places) in waits {
            let line = format!("{table}, {contender}, {line}");
            for WaitPlace { place, lines, ns } in places.into_iter().take(loops.places) {
                let figures = Figures::of("lines", lines).with("ns", ns);
                run.row("waits", &line, place, figures);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;
    use crate::bench::suite::SuiteArgs;

    const SHORT: Setting<'_> =
        Setting { costs: COSTS, cores: 1, time: 200_000, calls: 30_000, waits: None };

    /// Returns the rates on one core and on 16.
    fn one_and_many(rate: impl Fn(Setting<'_>) -> Result<f64>) -> (f64, f64) {
        let [one, many] = [1, 16].map(|cores| rate(Setting { cores, ..SHORT }).unwrap());
        (one, many)
    }

    /// Two processes, whose addresses differ. A second run in one process finds other numbers of
    /// threads, and spaces that the first has left.
    #[test]
    fn processes_take_equal_virtual_times() {
        const CHILD: &str = "KVMEM_TEST_CHILD";
        const NAME: &str = "bench::simulate::suite::tests::processes_take_equal_virtual_times";
        if env::var_os(CHILD).is_some() {
            let setting = Setting { cores: 16, ..SHORT };
            let rates = [
                setting.scenario::<OffsetAllocator>(Fragmented, 0).unwrap(),
                setting.scenario::<ExtentCache>(Scenario::HighWater, 0).unwrap(),
                setting.scenario::<ExtentCache>(Scenario::CrossThread, 0).unwrap(),
                setting.insertions(Eviction::Lru).unwrap(),
            ];
            return println!("\nrates {rates:?}");
        }
        let run = || {
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1");
            let output = String::from_utf8(child.output().unwrap().stdout).unwrap();
            let rates = output.lines().find(|line| line.starts_with("rates "));
            rates.unwrap_or_else(|| panic!("no rates: {output}")).to_owned()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn one_lock_does_not_scale() {
        let (one, many) = one_and_many(|at| at.scenario::<MutexAllocator>(Fragmented, 0));
        assert!(many <= 1.2 * one, "{one} {many}");
        // Each call waits at least for the line of the lock.
        assert!(many <= 1e6 / COSTS.handoff as f64, "{many}");
    }

    #[test]
    fn magazines_scale() {
        let (one, many) = one_and_many(|at| at.scenario::<ExtentCache>(Pair4K, 0));
        assert!(many >= 10.0 * one, "{one} {many}");
    }

    #[test]
    fn shards_scale_better_than_one_lock() {
        let (one, many) = one_and_many(|at| at.scenario::<Sharded<8>>(Fragmented, 0));
        assert!(many >= 3.0 * one, "{one} {many}");
    }

    #[test]
    fn a_shared_cursor_does_not_scale_and_private_hits_do() {
        let (one, many) =
            one_and_many(|at| at.scenario::<NoAllocator>(Scenario::Impossible, 5_000));
        assert!(many >= 15.0 * one && many <= 16.1 * one, "{one} {many}");
    }

    #[test]
    fn the_suite_has_rows_a_model_and_goals() {
        let table = ["bump-64", "model", "waits"].map(str::to_owned).to_vec();
        let args = SuiteArgs { quick: true, table, ..SuiteArgs::default() };
        let mut made = Run::new("simulate", &args);
        run(&mut made, 3).unwrap();
        assert_eq!(made.values("bump-64", "kvmem", "measured", |_| true).len(), 3);
        assert_eq!(made.values("bump-64", "kvmem", "M/s", |_| true).len(), CORES.len());
        let waits = made.lines("waits");
        assert_eq!(waits.len(), CORES.len() - 1, "one core waits for none: {waits:?}");
        let places = made.contenders("waits", &waits[0]);
        assert!(places.iter().any(|place| place.contains("cursor.rs")), "{places:?}");
        assert!(made.values("model", "factor", "mean", |_| true)[0].0 >= 1.0);
        assert!(made.finish().unwrap().goals.iter().all(|goal| goal.name.starts_with("simulated")));
    }
}
