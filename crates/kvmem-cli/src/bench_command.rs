//! `kvmem bench`: from the options to `kvmem-bench`, with a progress bar on the way and its table out again.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;
use kvmem_bench::html::Draw;
use kvmem_bench::progress::Progress;
use kvmem_bench::{arena, cache, concurrency, offset, register, slab};
use kvmem_report::Page;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{
    BenchArenaArgs, BenchCacheArgs, BenchConcurrencyArgs, BenchOffsetArgs, BenchRegisterArgs, BenchSlabArgs,
    BenchSuite,
};
use crate::output::{Failure, HtmlSink, JsonSink, progress_bar};

/// What a suite found.
type Found = Result<Box<dyn Draw>, Failure>;

/// Runs a suite, prints its table, and draws its page.
pub(crate) fn run(suite: &BenchSuite) -> Result<(), Failure> {
    match suite {
        BenchSuite::Arena(args) => page(args.html.as_deref(), || Ok(vec![run_arena(args)?])),
        BenchSuite::Offset(args) => page(args.html.as_deref(), || Ok(vec![run_offset(args)?])),
        BenchSuite::Register(args) => page(args.html.as_deref(), || Ok(vec![run_register(args)?])),
        BenchSuite::Slab(BenchSlabArgs { alone: Some(task), .. }) => run_alone(task),
        BenchSuite::Slab(args) => page(args.html.as_deref(), || Ok(vec![run_slab(args)?])),
        BenchSuite::Concurrency(args) => page(args.html.as_deref(), || Ok(vec![run_concurrency(args)?])),
        BenchSuite::Cache(args) => page(args.html.as_deref(), || Ok(vec![run_cache(args)?])),
    }
}

/// Runs every suite, from the lowest layer up.
pub(crate) fn run_all(quick: bool, html: Option<&Path>) -> Result<(), Failure> {
    let suites: [&dyn Fn() -> Found; 6] = [
        &|| run_arena(&BenchArenaArgs { quick, ..BenchArenaArgs::default() }),
        &|| run_register(&BenchRegisterArgs { quick, ..BenchRegisterArgs::default() }),
        &|| run_offset(&BenchOffsetArgs { quick, ..BenchOffsetArgs::default() }),
        &|| run_slab(&BenchSlabArgs { quick, ..BenchSlabArgs::default() }),
        &|| run_concurrency(&BenchConcurrencyArgs { quick, ..BenchConcurrencyArgs::default() }),
        &|| run_cache(&BenchCacheArgs { quick, ..BenchCacheArgs::default() }),
    ];
    page(html, || one_after_the_other(suites))
}

/// Shows what earlier runs have found.
pub(crate) fn show(files: &[PathBuf], html: Option<&Path>) -> Result<(), Failure> {
    page(html, || one_after_the_other(files.iter().map(|file| || recorded(file))))
}

fn one_after_the_other(
    runs: impl IntoIterator<Item = impl Fn() -> Found>,
) -> Result<Vec<Box<dyn Draw>>, Failure> {
    let run = |(number, run): (usize, _)| {
        if number > 0 {
            println!();
        }
        let run: &dyn Fn() -> Found = &run;
        run()
    };
    runs.into_iter().enumerate().map(run).collect()
}

/// Draws what was found, a chapter for each suite, if somebody wants a page of it.
fn page(
    html: Option<&Path>,
    run: impl FnOnce() -> Result<Vec<Box<dyn Draw>>, Failure>,
) -> Result<(), Failure> {
    let html = HtmlSink::open(html)?;
    let found = run()?;
    html.write(|| {
        found.iter().fold(Page::new("kvmem benchmarks"), |page, found| page.chapter(found.chapter()))
    })
}

/// What `--json` wrote, in a form that says itself which suite it is of.
fn recorded(path: &Path) -> Found {
    fn shown<R: Display + DeserializeOwned + Draw + 'static>(value: Value) -> Result<Box<dyn Draw>, String> {
        let report: R = serde_json::from_value(value).map_err(|error| error.to_string())?;
        crate::output::print(&report).map_err(|error| error.to_string())?;
        Ok(Box::new(report))
    }
    let read = || {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match value["suite"].as_str() {
            Some("arena") => shown::<arena::Report>(value),
            Some("register") => shown::<register::Report>(value),
            Some("offset") => shown::<kvmem_bench::report::Report>(value),
            Some("slab") => shown::<slab::Report>(value),
            Some("concurrency") => shown::<concurrency::Report>(value),
            Some("cache") => shown::<cache::Report>(value),
            Some("cache-policy") => shown::<cache::hits::Report>(value),
            Some(other) => Err(format!("there is no suite {other:?}")),
            None => Err("it does not say which suite it is of".to_owned()),
        }
    };
    read().map_err(|error| Failure::usage(format_args!("cannot show {}: {error}", path.display())))
}

fn run_arena(args: &BenchArenaArgs) -> Found {
    let options = arena::Options {
        quick: args.quick,
        reps: args.reps,
        ops: args.op.clone(),
        contenders: args.contender.clone(),
    };
    measure(args.json.as_deref(), |bar| arena::run(&options, bar))
}

fn run_register(args: &BenchRegisterArgs) -> Found {
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

fn run_offset(args: &BenchOffsetArgs) -> Found {
    let options = offset::Options {
        seed: args.seed,
        quick: args.quick,
        reps: args.reps,
        contenders: args.contender.clone(),
        workloads: args.workload.clone(),
    };
    measure(args.json.as_deref(), |bar| offset::run(&options, bar))
}

fn run_slab(args: &BenchSlabArgs) -> Found {
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

/// One measurement of the slab suite, in a process of its own.
fn run_alone(task: &slab::Task) -> Result<(), Failure> {
    let seen = slab::measure(task).map_err(|error| Failure::new(error, 1))?;
    println!("{seen}");
    Ok(())
}

/// This program, for one measurement of the slab suite.
pub(crate) fn alone(task: &slab::Task) -> Command {
    // The link leads to the program that runs, also when its file was replaced meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "slab", "--alone", &task.to_string()]);
    command
}

fn run_concurrency(args: &BenchConcurrencyArgs) -> Found {
    let options = concurrency::Options {
        quick: args.quick,
        reps: args.reps,
        scenarios: args.scenario.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
    };
    measure(args.json.as_deref(), |bar| concurrency::run(&options, bar))
}

fn run_cache(args: &BenchCacheArgs) -> Found {
    if args.policy {
        let options = cache::hits::Options { quick: args.quick, traces: args.trace.clone() };
        return measure(args.json.as_deref(), |bar| cache::hits::run(&options, bar));
    }
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
fn measure<R: Display + Serialize + Draw + 'static, E: Display>(
    json: Option<&Path>,
    run: impl FnOnce(&mut Bar) -> Result<R, E>,
) -> Found {
    let json = JsonSink::open(json)?;
    let mut bar = Bar::new();
    let report = run(&mut bar);
    bar.0.finish_and_clear();
    let report = report.map_err(|error| Failure::new(error, 1))?;
    json.write(&report, &report)?;
    Ok(Box::new(report))
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
