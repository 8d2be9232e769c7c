//! The benchmark of one allocator of offsets that several threads share.
//!
//! 1. *Scenarios.* The `pair-` scenarios allocate and free blocks of one size: 4 KiB, 2 MiB and
//!    3,274,752 B (a page of KV cache that is no multiple of a power of two).
//!    [`ConcurrencyScenario::HighWater`] keeps nine tenths of the space in use by blocks of those
//!    three sizes, while one request in twenty is for half of the space and must fail.
//!    [`ConcurrencyScenario::Impossible`] makes only such requests;
//!    [`ConcurrencyScenario::TooFragmented`] makes requests that the free bytes could serve, but
//!    none of the holes can. In
//!    [`ConcurrencyScenario::Fragmented`] half of the space is free, in holes of many sizes, and
//!    request sizes are random. In [`ConcurrencyScenario::CrossThread`] every block of 4 KiB is
//!    freed by a thread other than the one that allocated it; handles are passed on in batches of
//!    32.
//! 2. *Contenders.* The library as users hold it, both a bare space and one with caches; a model of
//!    the published allocator behind its mutex; the library's own allocator behind an additional
//!    mutex, so at most one thread is in it at a time: a plain heap behind a lock; and `null`,
//!    which creates handles and keeps no metadata: the cost of the loop and of passing handles on.
//!    A space with eight shards from the start takes part in `fragmented`; the others cut
//!    themselves when threads contend.
//! 3. *Operations.* An operation is one call: an allocation, a free, or a request that fails. Times
//!    of single calls are measured in a second run, because reading the clock takes longer than
//!    many calls; the cost of reading it is subtracted.

pub(super) mod contender;
mod measure;
pub(super) mod scenario;

use std::time::Duration;

use anyhow::Result;

use self::measure::measure;
pub use self::measure::rate;
use super::machine::Machine;
use super::suite::{Run, Turns, names};

use ConcurrencyContenderId::{Binned, KvmemCached};

/// Numbers of threads.
const THREADS: [u32; 4] = [1, 2, 4, 16];

/// Runs the benchmark.
pub fn run(run: &mut Run) -> Result<()> {
    let reps = run.reps(7, 3);
    run.settings(format_args!("{reps} repetition(s)"));
    let time = Duration::from_millis(run.length(200, 12, 2));
    for scenario in ConcurrencyScenario::ALL {
        let name = scenario.name();
        run.about(name, "million calls a second of all threads, and p50 and p99 of a call in ns");
        let all = &ConcurrencyContenderId::ALL[..];
        let is_fragmented = scenario == ConcurrencyScenario::Fragmented;
        let able = if is_fragmented { all } else { &all[..all.len() - 1] };
        for threads in THREADS {
            let line = format!("{threads} thread(s)");
            run.turns((name, &line), able, Turns::of(reps), |contender, _| {
                measure(scenario, contender, threads, time)
            })?;
        }
    }
    goals(run);
    Ok(())
}

/// Requests of a full space are refused by one load before the lock in both allocators, so these
/// are compared with one thread only. Sizes that are all different pass the magazines: threads are
/// faster there than one because the space is cut into shards. Handles that are passed to another
/// thread take longer than the calls: their lines of memory travel.
fn goals(run: &mut Run) {
    let two = |line: &str| line == "2 thread(s)";
    let many = |line: &str| line == "4 thread(s)" || line == "16 thread(s)";
    // A second thread counts only if it has its own processor.
    if Machine::here().cores >= 2 {
        for (table, over_one, over_binned) in [
            ("pair-4k", 1.8, Some(10.0)),
            ("pair-2m", 1.8, Some(10.0)),
            ("pair-3274752", 1.8, Some(10.0)),
            ("high-water", 1.8, Some(10.0)),
            ("impossible", 1.8, None),
            ("cross-thread", 1.0, Some(10.0)),
            ("fragmented", 1.0, Some(1.5)),
        ] {
            let name = format!("{table}: rate of two threads over that of one");
            run.at_least(&name, over_one, over_one_thread(run, table, two));
            if let Some(limit) = over_binned {
                let name = format!("{table}: rate of two threads over that of binned");
                run.at_least(&name, limit, run.over(table, (KvmemCached, Binned), "M/s", two));
            }
        }
        let name = "high-water: rate of four and sixteen threads over that of one";
        run.at_least(name, 0.9, over_one_thread(run, "high-water", many));
        let table = "fragmented";
        if Machine::here().cores >= 16 {
            let sixteen = over_one_thread(run, table, |line| line == "16 thread(s)");
            run.at_least("fragmented: rate of sixteen threads over that of one", 6.0, sixteen);
        }
        let name = "fragmented: rate of four and sixteen threads over that of";
        run.at_least(&format!("{name} one"), 0.9, over_one_thread(run, table, many));
        let binned = run.over(table, (KvmemCached, Binned), "M/s", many);
        run.at_least(&format!("{name} binned"), 1.5, binned);
    }
    if Machine::here().cores >= 16 {
        let table = "high-water";
        let sixteen = |line: &str| line == "16 thread(s)";
        let name = "high-water: rate of sixteen threads over that of one";
        run.at_least(name, 4.0, over_one_thread(run, table, sixteen));
        // Three hundredths are noise.
        let name = "high-water: rate over that of the next smaller number of threads";
        let rates = run.values(table, KvmemCached, "M/s", |_| true);
        let pairs = rates.iter().zip(rates.iter().skip(1));
        let over = pairs.map(|((fewer, _), (more, line))| (more / fewer, line.clone())).collect();
        run.at_least(name, 0.97, over);
    }
    let hopeless = ["impossible", "too-fragmented"]
        .into_iter()
        .flat_map(|table| run.values(table, KvmemCached, "M/s", |line| line == "1 thread(s)"));
    let hopeless = hopeless.map(|(rate, line)| (1e3 / rate, line)).collect();
    run.at_most("impossible, too-fragmented: ns of a request that fails", 3.0, hopeless);
}

fn over_one_thread(run: &Run, table: &str, lines: impl Fn(&str) -> bool) -> Vec<(f64, String)> {
    let one = run.values(table, KvmemCached, "M/s", |line| line == "1 thread(s)");
    let one = one.first().map_or(f64::INFINITY, |(rate, _)| *rate);
    let all = run.values(table, KvmemCached, "M/s", lines).into_iter();
    all.map(|(rate, line)| (rate / one, line)).collect()
}

names! {
    /// The scenarios by name.
    pub enum ConcurrencyScenario ("scenario") {
        Pair4K = "pair-4k",
        Pair2M = "pair-2m",
        PairOdd = "pair-3274752",
        HighWater = "high-water",
        Impossible = "impossible",
        TooFragmented = "too-fragmented",
        Fragmented = "fragmented",
        CrossThread = "cross-thread",
    }
}

names! {
    /// The contenders by name.
    pub enum ConcurrencyContenderId ("contender") {
        Kvmem = "kvmem",
        KvmemCached = "kvmem-cached",
        Binned = "binned",
        Mutex = "mutex",
        Null = "null",
        KvmemShards = "kvmem-shards-8",
    }
}
