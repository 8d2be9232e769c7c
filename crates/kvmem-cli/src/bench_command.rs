//! `kvmem bench`: from the options to `kvmem-bench`, with a progress bar on the way and its table out again.

use std::fmt::Display;
use std::path::Path;
use std::process::Command;

use indicatif::ProgressBar;
use kvmem_bench::progress::Progress;
use kvmem_bench::{arena, cache, concurrency, offset, register, slab};
use serde::Serialize;

use crate::args::{
    BenchArenaArgs, BenchCacheArgs, BenchConcurrencyArgs, BenchOffsetArgs, BenchRegisterArgs, BenchSlabArgs,
    BenchSuite,
};
use crate::output::{Failure, JsonSink, progress_bar};

/// Runs a suite and prints its table.
pub(crate) fn run(suite: &BenchSuite) -> Result<(), Failure> {
    match suite {
        BenchSuite::Arena(args) => run_arena(args),
        BenchSuite::Offset(args) => run_offset(args),
        BenchSuite::Register(args) => run_register(args),
        BenchSuite::Slab(args) => run_slab(args),
        BenchSuite::Concurrency(args) => run_concurrency(args),
        BenchSuite::Cache(args) => run_cache(args),
    }
}

/// Runs every suite, from the lowest layer up.
pub(crate) fn run_all(quick: bool) -> Result<(), Failure> {
    run_arena(&BenchArenaArgs { quick, ..BenchArenaArgs::default() })?;
    println!();
    run_register(&BenchRegisterArgs { quick, ..BenchRegisterArgs::default() })?;
    println!();
    run_offset(&BenchOffsetArgs { quick, ..BenchOffsetArgs::default() })?;
    println!();
    run_slab(&BenchSlabArgs { quick, ..BenchSlabArgs::default() })?;
    println!();
    run_concurrency(&BenchConcurrencyArgs { quick, ..BenchConcurrencyArgs::default() })?;
    println!();
    run_cache(&BenchCacheArgs { quick, ..BenchCacheArgs::default() })
}

fn run_arena(args: &BenchArenaArgs) -> Result<(), Failure> {
    let options = arena::Options {
        quick: args.quick,
        reps: args.reps,
        ops: args.op.clone(),
        contenders: args.contender.clone(),
    };
    measure(args.json.as_deref(), |bar| arena::run(&options, bar))
}

fn run_register(args: &BenchRegisterArgs) -> Result<(), Failure> {
    let options = register::Options {
        quick: args.quick,
        reps: args.reps,
        backends: args.backend.clone(),
        contenders: args.policy.clone(),
        region_bytes: args.size.clone(),
        contexts: args.contexts.clone(),
    };
    measure(args.json.as_deref(), |bar| register::run(&options, bar))
}

fn run_offset(args: &BenchOffsetArgs) -> Result<(), Failure> {
    let options = offset::Options {
        seed: args.seed,
        quick: args.quick,
        reps: args.reps,
        contenders: args.contender.clone(),
        workloads: args.workload.clone(),
    };
    measure(args.json.as_deref(), |bar| offset::run(&options, bar))
}

fn run_slab(args: &BenchSlabArgs) -> Result<(), Failure> {
    if let Some(task) = &args.alone {
        let seen = slab::measure(task).map_err(|error| Failure::new(error, 1))?;
        println!("{seen}");
        return Ok(());
    }
    let options = slab::Options {
        quick: args.quick,
        reps: args.reps,
        patterns: args.pattern.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
        child: Some(alone),
    };
    measure(args.json.as_deref(), |bar| slab::run(&options, bar))
}

/// This program, for one measurement of the slab suite.
fn alone(task: &slab::Task) -> Command {
    // The link leads to the program that runs, also when its file was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "slab", "--alone", &task.to_string()]);
    command
}

fn run_concurrency(args: &BenchConcurrencyArgs) -> Result<(), Failure> {
    let options = concurrency::Options {
        quick: args.quick,
        reps: args.reps,
        scenarios: args.scenario.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
    };
    measure(args.json.as_deref(), |bar| concurrency::run(&options, bar))
}

fn run_cache(args: &BenchCacheArgs) -> Result<(), Failure> {
    let options = cache::Options {
        quick: args.quick,
        reps: args.reps,
        scenarios: args.scenario.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
    };
    measure(args.json.as_deref(), |bar| cache::run(&options, bar))
}

/// Runs a suite under a progress bar and shows its report.
fn measure<R: Display + Serialize, E: Display>(
    json: Option<&Path>,
    run: impl FnOnce(&mut Bar) -> Result<R, E>,
) -> Result<(), Failure> {
    let json = JsonSink::open(json)?;
    let mut bar = Bar::new();
    let report = run(&mut bar);
    bar.0.finish_and_clear();
    let report = report.map_err(|error| Failure::new(error, 1))?;
    json.write(&report, &report)
}

/// A progress bar that a benchmark moves.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        Self(progress_bar(None, "{elapsed_precise} {wide_bar} {percent:>3} % {msg}"))
    }
}

impl<R> Progress<R> for Bar {
    fn begin(&mut self, units: u64) {
        self.0.set_length(units);
    }

    fn step(&mut self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn advance(&mut self, units: u64) {
        self.0.inc(units);
    }
}
