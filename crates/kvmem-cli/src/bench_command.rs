//! `kvmem bench`: runs suites of `kvmem-bench` under a progress bar and prints their tables.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;
use kvmem_bench::hugepages::{self, Restored};
use kvmem_bench::progress::Progress;
use kvmem_bench::suite::Draw;
use kvmem_bench::{arena, cache, concurrency, offset, register, slab};
use kvmem_report::Page;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{
    BenchArenaArgs, BenchCacheArgs, BenchConcurrencyArgs, BenchOffsetArgs, BenchRegisterArgs,
    BenchSlabArgs, BenchSuite,
};
use crate::escape::shown;
use crate::output::{Failure, HtmlSink, JsonSink, print, progress_bar, tell};
use crate::output_file::OutputFiles;

/// The result of a suite.
type SuiteResult = Result<Box<dyn Draw>, Failure>;

/// Runs a suite, prints its table, and draws its page.
pub(crate) fn run(suite: &BenchSuite) -> Result<(), Failure> {
    if !matches!(suite, BenchSuite::Slab(BenchSlabArgs { alone: Some(_), .. })) {
        recover();
    }
    match suite {
        BenchSuite::Arena(args) => one(&args.json, &args.html, |json| run_arena(args, json)),
        BenchSuite::Offset(args) => one(&args.json, &args.html, |json| run_offset(args, json)),
        BenchSuite::Register(args) => one(&args.json, &args.html, |json| run_register(args, json)),
        BenchSuite::Slab(BenchSlabArgs { alone: Some(task), .. }) => run_alone(task),
        BenchSuite::Slab(args) => one(&args.json, &args.html, |json| run_slab(args, json)),
        BenchSuite::Concurrency(args) => {
            one(&args.json, &args.html, |json| run_concurrency(args, json))
        }
        BenchSuite::Cache(args) => {
            one_from(&args.trace, &args.json, &args.html, |json| run_cache(args, json))
        }
    }
}

/// Runs every suite, from the lowest layer up.
pub(crate) fn run_all(
    quick: bool,
    borrow_hugepages: bool,
    html: Option<&Path>,
) -> Result<(), Failure> {
    recover();
    let none = || JsonSink::None;
    let suites: [&dyn Fn() -> SuiteResult; 6] = [
        &|| run_arena(&BenchArenaArgs { quick, borrow_hugepages, ..Default::default() }, none()),
        &|| {
            run_register(
                &BenchRegisterArgs { quick, borrow_hugepages, ..Default::default() },
                none(),
            )
        },
        &|| run_offset(&BenchOffsetArgs { quick, ..Default::default() }, none()),
        &|| run_slab(&BenchSlabArgs { quick, ..Default::default() }, none()),
        &|| run_concurrency(&BenchConcurrencyArgs { quick, ..Default::default() }, none()),
        &|| run_cache(&BenchCacheArgs { quick, ..Default::default() }, none()),
    ];
    let html = HtmlSink::open(&mut OutputFiles::new(), html)?;
    page(html, || one_after_the_other(suites))
}

/// Returns the hugepages that a killed run has borrowed, and prints that.
fn recover() {
    match hugepages::recover() {
        Ok(None) => {}
        Ok(Some(Restored { found, pages, left_by })) => tell(format_args!(
            "kvmem: vm.nr_hugepages is {pages} again: process {} was killed and left it at {found}",
            left_by.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        )),
        Err(error) => tell(format_args!(
            "kvmem: hugepages that an earlier run borrowed cannot be returned: {error}"
        )),
    }
}

/// Shows the results of earlier runs.
pub(crate) fn show(from: &[PathBuf], html: Option<&Path>) -> Result<(), Failure> {
    let files = OutputFiles::new();
    let mut files =
        from.iter().fold(files, |files, from| files.protect("a file that --from names", from));
    let html = HtmlSink::open(&mut files, html)?;
    page(html, || one_after_the_other(from.iter().map(|file| || recorded(file))))
}

/// Opens the outputs of one suite, runs it, and draws its page.
fn one(
    json: &Option<PathBuf>,
    html: &Option<PathBuf>,
    run: impl FnOnce(JsonSink) -> SuiteResult,
) -> Result<(), Failure> {
    one_from(&[], json, html, run)
}

/// Opens the outputs of a suite that reads traces, runs it, and draws its page. No output may be
/// one of the traces.
fn one_from(
    traces: &[PathBuf],
    json: &Option<PathBuf>,
    html: &Option<PathBuf>,
    run: impl FnOnce(JsonSink) -> SuiteResult,
) -> Result<(), Failure> {
    let files = OutputFiles::new();
    let mut files =
        traces.iter().fold(files, |files, trace| files.protect("a file that --trace names", trace));
    let json = JsonSink::open(&mut files, json.as_deref())?;
    let html = HtmlSink::open(&mut files, html.as_deref())?;
    page(html, || Ok(vec![run(json)?]))
}

fn one_after_the_other(
    runs: impl IntoIterator<Item = impl Fn() -> SuiteResult>,
) -> Result<Vec<Box<dyn Draw>>, Failure> {
    let run = |(number, run): (usize, _)| {
        if number > 0 {
            print("\n")?;
        }
        let run: &dyn Fn() -> SuiteResult = &run;
        run()
    };
    runs.into_iter().enumerate().map(run).collect()
}

/// Draws a chapter for each suite, if a page was requested.
fn page(
    html: HtmlSink,
    run: impl FnOnce() -> Result<Vec<Box<dyn Draw>>, Failure>,
) -> Result<(), Failure> {
    let found = run()?;
    html.write(|| {
        found
            .iter()
            .fold(Page::new("kvmem benchmarks"), |page, found| page.chapter(found.chapter()))
    })
}

/// Reads a file that `--json` wrote; it names its suite.
fn recorded(path: &Path) -> SuiteResult {
    fn report<R: Display + DeserializeOwned + Draw + 'static>(
        value: Value,
    ) -> Result<Box<dyn Draw>, String> {
        let report: R = serde_json::from_value(value).map_err(|error| error.to_string())?;
        print(&report).map_err(|error| error.to_string())?;
        Ok(Box::new(report))
    }
    let read = || {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match value["suite"].as_str() {
            Some("arena") => report::<arena::ArenaReport>(value),
            Some("register") => report::<register::RegisterReport>(value),
            Some("offset") => report::<offset::OffsetReport>(value),
            Some("slab") => report::<slab::SlabReport>(value),
            Some("concurrency") => report::<concurrency::ConcurrencyReport>(value),
            Some("cache") => report::<cache::CacheReport>(value),
            Some("cache-policy") => report::<cache::hits::HitRateReport>(value),
            Some(other) => Err(format!("there is no suite {other:?}")),
            None => Err("it does not name its suite".to_owned()),
        }
    };
    read().map_err(|error| Failure::usage(format_args!("cannot show {}: {error}", shown(path))))
}

fn run_arena(args: &BenchArenaArgs, json: JsonSink) -> SuiteResult {
    let options = arena::ArenaOptions {
        quick: args.quick,
        reps: args.reps,
        ops: args.op.clone(),
        contenders: args.contender.clone(),
        borrow_hugepages: args.borrow_hugepages,
    };
    measure(json, |bar| arena::run(&options, bar))
}

fn run_register(args: &BenchRegisterArgs, json: JsonSink) -> SuiteResult {
    let options = register::RegisterOptions {
        quick: args.quick,
        reps: args.reps,
        backends: args.backend.clone(),
        contenders: args.policy.clone(),
        region_bytes: args.size.clone(),
        contexts: args.contexts.clone(),
        borrow_hugepages: args.borrow_hugepages,
    };
    measure(json, |bar| register::run(&options, bar))
}

fn run_offset(args: &BenchOffsetArgs, json: JsonSink) -> SuiteResult {
    let options = offset::OffsetOptions {
        seed: args.seed,
        quick: args.quick,
        reps: args.reps,
        contenders: args.contender.clone(),
        workloads: args.workload.clone(),
    };
    measure(json, |bar| offset::run(&options, bar))
}

fn run_slab(args: &BenchSlabArgs, json: JsonSink) -> SuiteResult {
    let options = slab::SlabOptions {
        quick: args.quick,
        reps: args.reps,
        patterns: args.pattern.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
        child: Some(alone),
    };
    measure(json, |bar| slab::run(&options, bar))
}

/// Runs one measurement of the slab suite in this process.
fn run_alone(task: &slab::Task) -> Result<(), Failure> {
    let seen = slab::measure(task).map_err(|error| Failure::new(error, 1))?;
    print(format_args!("{seen}\n"))
}

/// The command that runs one measurement of the slab suite.
pub(crate) fn alone(task: &slab::Task) -> Command {
    // The link leads to the running program, even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", "slab", "--alone", &task.to_string()]);
    command
}

fn run_concurrency(args: &BenchConcurrencyArgs, json: JsonSink) -> SuiteResult {
    let options = concurrency::ConcurrencyOptions {
        quick: args.quick,
        reps: args.reps,
        scenarios: args.scenario.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
    };
    measure(json, |bar| concurrency::run(&options, bar))
}

fn run_cache(args: &BenchCacheArgs, json: JsonSink) -> SuiteResult {
    if args.policy {
        let options = cache::hits::HitRateOptions { quick: args.quick, traces: args.trace.clone() };
        return measure(json, |bar| cache::hits::run(&options, bar));
    }
    let options = cache::CacheOptions {
        quick: args.quick,
        reps: args.reps,
        scenarios: args.scenario.clone(),
        contenders: args.contender.clone(),
        threads: args.threads.clone(),
    };
    measure(json, |bar| cache::run(&options, bar))
}

/// Runs a suite under a progress bar and shows its report.
fn measure<R: Display + Serialize + Draw + 'static, E: Display>(
    json: JsonSink,
    run: impl FnOnce(&mut Bar) -> Result<R, E>,
) -> SuiteResult {
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
