//! *Benchmarks*: the quick benchmarks that fit into a tour, those with published figures first.
//!
//! Each takes a few seconds on a quiet machine. A tour must end on a busy machine too: no benchmark
//! begins after [`LAST`], and the tour names those that it left out.

use std::time::{Duration, Instant};

use kvmem_bench::contender::ContenderId;
use kvmem_bench::offset::{OffsetRow, WorkloadId};
use kvmem_bench::suite::{Draw, Goal};
use kvmem_bench::{arena, cache, concurrency, offset, register, slab};

use super::telling::Going;
use crate::bench_command::alone;

/// No benchmark begins after this time of the tour.
const LAST: Duration = Duration::from_secs(75);

/// NICs of the simulated machines: as many as the published ones had.
const NICS: u32 = 8;

/// The result of one benchmark.
pub(super) struct BenchmarkFigures {
    /// A chapter of the page.
    pub(super) chapter: Box<dyn Draw>,
    /// The figures to print.
    pub(super) lines: Vec<Line>,
    /// The number of goals, and those that were missed.
    pub(super) goals: Goals,
}

/// One figure of every contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Its name and unit.
    pub(super) what: String,
    /// The figures, kvmem first; or what has none, and why.
    pub(super) figures: Vec<String>,
}

/// Goals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Goals {
    pub(super) all: usize,
    pub(super) missed: Vec<String>,
}

/// The benchmarks by name, in the order in which they run.
type Benchmark = (&'static str, fn(&Going) -> Result<BenchmarkFigures, String>);
const ALL: [Benchmark; 6] = [
    ("offset", run_offset),
    ("register", run_register),
    ("slab", run_slab),
    ("concurrency", run_concurrency),
    ("arena", run_arena),
    ("cache", run_cache),
];

/// Runs them; the tour began at `begun`. Calls `told` with the result of each, or the reason why it
/// has none.
pub(super) fn run<E>(
    begun: Instant,
    mut told: impl FnMut(&str, Result<BenchmarkFigures, String>) -> Result<(), E>,
) -> Result<Vec<&'static str>, E> {
    let mut left_out = Vec::new();
    for (name, benchmark) in ALL {
        if begun.elapsed() > LAST {
            left_out.push(name);
            continue;
        }
        let going = Going::new(&format!("benchmark {name}"), None);
        let found = benchmark(&going);
        drop(going);
        told(name, found)?;
    }
    Ok(left_out)
}

impl BenchmarkFigures {
    fn new(chapter: impl Draw + 'static, goals: &[Goal], lines: Vec<Line>) -> BenchmarkFigures {
        let missed =
            goals.iter().filter(|goal| !goal.met()).map(|goal| goal.name.clone()).collect();
        BenchmarkFigures {
            chapter: Box::new(chapter),
            lines,
            goals: Goals { all: goals.len(), missed },
        }
    }
}

/// Makes a line of the figures that exist.
fn line(what: &str, figures: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Line {
    let known =
        figures.into_iter().filter_map(|(name, figure)| Some(format!("{name} {}", figure?)));
    Line { what: what.to_owned(), figures: known.collect() }
}

fn run_offset(mut going: &Going) -> Result<BenchmarkFigures, String> {
    let workloads = vec![WorkloadId::Random, WorkloadId::Paired];
    let options =
        offset::OffsetOptions { quick: true, workloads, ..offset::OffsetOptions::default() };
    let report = offset::run(&options, &mut going).map_err(|error| error.to_string())?;
    let row = |workload, contender| {
        report.rows.iter().find(move |row| row.workload == workload && row.contender == contender)
    };
    let mut lines = Vec::new();
    for (workload, what) in
        [(WorkloadId::Random, "1 KiB to 64 MiB"), (WorkloadId::Paired, "KV pages, indexes")]
    {
        let rows =
            [ContenderId::Kvmem, ContenderId::Binned].map(|contender| row(workload, contender));
        let both = |figure: &dyn Fn(&OffsetRow) -> Option<String>,
                    published: &dyn Fn(&OffsetRow) -> Option<String>| {
            let [ours, theirs] = rows;
            [
                ("kvmem", ours.and_then(figure)),
                ("published allocator", theirs.and_then(figure)),
                ("as published", theirs.and_then(published)),
            ]
        };
        let share = |share: f64| format!("{share:.4}");
        let ns = |ns: f64| format!("{ns:.0}");
        lines.push(line(
            &format!("{what}: space used"),
            both(&|row| row.util_avg.map(share), &|row| row.published_util_avg.map(share)),
        ));
        lines.push(line(
            &format!("{what}: ns a call"),
            both(&|row| row.ns_per_op.map(ns), &|row| row.published_ns.map(ns)),
        ));
    }
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines))
}

fn run_register(mut going: &Going) -> Result<BenchmarkFigures, String> {
    use register::{Backend, RegisterContenderId};
    // Rings pin the tour's own pool; these are the machines of the published figures.
    let backends = vec![Backend::ParallelWins, Backend::ParallelLoses];
    let options = register::RegisterOptions {
        quick: true,
        reps: Some(1),
        backends,
        contexts: vec![NICS],
        ..register::RegisterOptions::default()
    };
    let report = register::run(&options, &mut going).map_err(|error| error.to_string())?;
    let seconds = |backend, policy| {
        let mut rows = report.rows.iter().filter(|row| !row.resident);
        rows.find(|row| row.backend == backend && row.policy == policy)
            .map(|row| format!("{:.0} s", row.total_s))
    };
    let lines = [(Backend::ParallelWins, "machine 1"), (Backend::ParallelLoses, "machine 2")].map(
        |(backend, which)| {
            let figures = [
                ("kvmem", RegisterContenderId::Auto),
                ("published: one by one", RegisterContenderId::Sequential),
                ("side by side", RegisterContenderId::Parallel),
            ];
            let what = format!("{NICS} simulated NICs, {which}");
            line(&what, figures.map(|(name, policy)| (name, seconds(backend, policy))))
        },
    );
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines.into()))
}

fn run_cache(mut going: &Going) -> Result<BenchmarkFigures, String> {
    let options =
        cache::CacheOptions { quick: true, threads: vec![1, 2], ..cache::CacheOptions::default() };
    let report = cache::run(&options, &mut going).map_err(|error| error.to_string())?;
    let ns = |threads, contender| {
        let mut rows =
            report.rows.iter().filter(|row| row.scenario == cache::CacheScenario::GetHit);
        rows.find(|row| row.threads == threads && row.contender == contender)
            .map(|row| format!("{:.0}", row.ns))
    };
    let lines = [1, 2].map(|threads| {
        let figures = [
            ("kvmem", ns(threads, cache::CacheContenderId::Kvmem)),
            ("quick_cache over the heap", ns(threads, cache::CacheContenderId::QuickCache)),
        ];
        line(&format!("cache hit, {threads} thread(s): ns"), figures)
    });
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines.into()))
}

fn run_slab(mut going: &Going) -> Result<BenchmarkFigures, String> {
    use slab::{Pattern, SlabContenderId};
    let options = slab::SlabOptions {
        quick: true,
        patterns: vec![Pattern::Fixed],
        threads: vec![1, 2],
        child: Some(alone),
        ..slab::SlabOptions::default()
    };
    let report = slab::run(&options, &mut going).map_err(|error| error.to_string())?;
    let mut lines = Vec::from([1, 2].map(|threads| {
        let ns = |contender: SlabContenderId| {
            let row = report
                .rows
                .iter()
                .find(|row| row.threads == threads && row.contender == contender)?;
            Some(format!("{:.1}", row.ns_per_pair))
        };
        let figures = SlabContenderId::ALL.map(|contender| (contender.name(), ns(contender)));
        line(&format!("small block, {threads} thread(s): ns"), figures)
    }));
    let mut reasons: Vec<&str> = report.skipped.iter().map(|one| one.reason.as_str()).collect();
    reasons.dedup();
    for reason in reasons {
        let same = report.skipped.iter().filter(|skipped| skipped.reason == reason);
        let names: Vec<&str> = same.map(|skipped| skipped.contender.name()).collect();
        let figures = vec![names.join(", "), reason.to_owned()];
        lines.push(Line { what: "not measured".to_owned(), figures });
    }
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines))
}

fn run_concurrency(mut going: &Going) -> Result<BenchmarkFigures, String> {
    use concurrency::{ConcurrencyContenderId, ConcurrencyScenario};
    let options = concurrency::ConcurrencyOptions {
        quick: true,
        scenarios: vec![ConcurrencyScenario::Pair4K],
        threads: vec![1, 2],
        ..concurrency::ConcurrencyOptions::default()
    };
    let report = concurrency::run(&options, &mut going).map_err(|error| error.to_string())?;
    let rate = |contender| {
        let row = report.rows.iter().find(|row| row.threads == 2 && row.contender == contender)?;
        Some(format!("{:.0}", row.mops))
    };
    let figures = [
        ("kvmem", rate(ConcurrencyContenderId::KvmemCached)),
        ("published allocator", rate(ConcurrencyContenderId::Binned)),
    ];
    let lines = vec![line("2 threads, 1 space: M calls/s", figures)];
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines))
}

fn run_arena(mut going: &Going) -> Result<BenchmarkFigures, String> {
    let options = arena::ArenaOptions {
        quick: true,
        ops: vec![arena::Op::Bump],
        ..arena::ArenaOptions::default()
    };
    let report = arena::run(&options, &mut going).map_err(|error| error.to_string())?;
    let ns = |contender| {
        let mut rows = report.rows.iter().filter(|row| row.threads == 2);
        let row = rows.find(|row| row.contender == contender)?;
        row.ns_per_op.map(|ns| format!("{ns:.0}"))
    };
    let figures = [
        ("kvmem", ns(arena::ArenaContenderId::Kvmem)),
        ("published-arena", ns(arena::ArenaContenderId::PublishedArena)),
        ("mutex", ns(arena::ArenaContenderId::Mutex)),
    ];
    let lines = vec![line("bump allocation, 2 threads: ns", figures)];
    let goals = report.goals.clone();
    Ok(BenchmarkFigures::new(report, &goals, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_begun_when_the_time_is_over() {
        let begun = Instant::now()
            .checked_sub(LAST + Duration::from_secs(1))
            .expect("the machine is up that long");
        let left_out = run(begun, |name, _| Err(name.to_owned()));
        assert_eq!(left_out, Ok(ALL.map(|(name, _)| name).to_vec()));
    }

    #[test]
    fn figures_that_are_not_there_are_not_told() {
        let told = line(
            "what",
            [("one", Some("1".to_owned())), ("two", None), ("three", Some("3".to_owned()))],
        );
        assert_eq!(told.figures, ["one 1", "three 3"]);
    }
}
