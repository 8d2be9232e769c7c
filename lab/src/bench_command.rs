//! `kvmem bench`: runs suites of `kvmem-bench` under a progress bar and prints their tables.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::ProgressBar;
use kvmem_bench::hugepages::{self, Restored};
use kvmem_bench::progress::Progress;
use kvmem_bench::suite::Draw;
use kvmem_bench::{
    arena, cache, concurrency, gpu, neighbour, node, offset, register, simulate, slab, tier,
};
use kvmem_report::Page;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{
    BenchArenaArgs, BenchArgs, BenchCacheArgs, BenchConcurrencyArgs, BenchGpuArgs, BenchNodeArgs,
    BenchOffsetArgs, BenchRegisterArgs, BenchSimulateArgs, BenchSlabArgs, BenchSuite,
    BenchTierArgs, SuiteArgs,
};
use crate::html::HtmlSink;
use kvmem_cli::output::{Failure, JsonSink, print, progress_bar, tell};
use kvmem_cli::output_file::OutputFiles;
use kvmem_trace::escape::shown;

/// The result of a suite.
type SuiteResult = Result<Box<dyn Draw>, Failure>;

/// The options of a suite, with which it can run.
trait SuiteOptions {
    /// Returns the options that every suite has.
    fn common(&self) -> &SuiteArgs;

    /// Returns the traces that the suite reads. No output may be one of them.
    fn traces(&self) -> &[PathBuf] {
        &[]
    }

    /// Runs the suite under a progress bar, and shows its report.
    fn measure(&self, json: JsonSink) -> SuiteResult;
}

/// Runs the benchmarks that `args` select, prints their tables, and draws their page.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.suite {
        Some(BenchSuite::Slab(BenchSlabArgs { alone: Some(task), .. })) => run_alone(task),
        Some(BenchSuite::Offset(BenchOffsetArgs { stream: Some(processor), .. })) => {
            neighbour::stream(*processor).map_err(|error| Failure::new(error, 1))
        }
        Some(BenchSuite::Node(BenchNodeArgs { role: Some(role), .. })) => {
            node::act(role, &mut std::io::stdout()).map_err(|error| Failure::new(error, 1))
        }
        Some(suite) => {
            recover();
            run_one(match suite {
                BenchSuite::Arena(suite) => suite,
                BenchSuite::Offset(suite) => suite,
                BenchSuite::Register(suite) => suite,
                BenchSuite::Slab(suite) => suite,
                BenchSuite::Concurrency(suite) => suite,
                BenchSuite::Simulate(suite) => suite,
                BenchSuite::Cache(suite) => suite,
                BenchSuite::Tier(suite) => suite,
                BenchSuite::Node(suite) => suite,
                BenchSuite::Gpu(suite) => suite,
            })
        }
        None if !args.from.is_empty() => show(&args.from, args.html.as_deref()),
        None => {
            recover();
            run_all(args)
        }
    }
}

/// Opens the outputs of one suite, runs it, and draws its page.
fn run_one(suite: &dyn SuiteOptions) -> Result<(), Failure> {
    let mut files = OutputFiles::new();
    for trace in suite.traces() {
        files = files.protect("a file that --trace names", trace);
    }
    let SuiteArgs { json, html, .. } = suite.common();
    let json = JsonSink::open(&mut files, json.as_deref())?;
    let html = HtmlSink::open(&mut files, html.as_deref())?;
    page(html, || Ok(vec![suite.measure(json)?]))
}

/// Runs every suite, from the lowest layer up.
fn run_all(args: &BenchArgs) -> Result<(), Failure> {
    let run = || SuiteArgs { quick: args.quick, ..SuiteArgs::default() };
    let hugepages = args.hugepages;
    let suites: [&dyn SuiteOptions; 6] = [
        &BenchArenaArgs { run: run(), hugepages, ..Default::default() },
        &BenchRegisterArgs { run: run(), hugepages, ..Default::default() },
        &BenchOffsetArgs { run: run(), ..Default::default() },
        &BenchSlabArgs { run: run(), ..Default::default() },
        &BenchConcurrencyArgs { run: run(), ..Default::default() },
        &BenchCacheArgs { run: run(), ..Default::default() },
    ];
    let html = HtmlSink::open(&mut OutputFiles::new(), args.html.as_deref())?;
    page(html, || one_after_the_other(suites.map(|suite| move || suite.measure(JsonSink::None))))
}

/// Returns the hugepages that a killed run has borrowed, and prints that.
fn recover() {
    match hugepages::recover() {
        Ok(None) => {}
        Ok(Some(Restored { found, pages, left_by })) => tell(format_args!(
            "kvmem-lab: vm.nr_hugepages is {pages} again: process {} was killed and left it at
            {found}",
            left_by.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        )),
        Err(error) => tell(format_args!(
            "kvmem-lab: hugepages that an earlier run borrowed cannot be returned: {error}"
        )),
    }
}

/// Shows the results of earlier runs.
fn show(from: &[PathBuf], html: Option<&Path>) -> Result<(), Failure> {
    let files = OutputFiles::new();
    let mut files =
        from.iter().fold(files, |files, from| files.protect("a file that --from names", from));
    let html = HtmlSink::open(&mut files, html)?;
    page(html, || one_after_the_other(from.iter().map(|file| || recorded(file))))
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
            Some("simulate") => report::<simulate::SimulateReport>(value),
            Some("cache") => report::<cache::CacheReport>(value),
            Some("tier") => report::<tier::TierReport>(value),
            Some("node") => report::<node::NodeReport>(value),
            Some("gpu") => report::<gpu::GpuReport>(value),
            Some("cache-policy") => report::<cache::hits::HitRateReport>(value),
            Some(other) => Err(format!("there is no suite {other:?}")),
            None => Err("it does not name its suite".to_owned()),
        }
    };
    read().map_err(|error| Failure::usage(format_args!("cannot show {}: {error}", shown(path))))
}

impl SuiteOptions for BenchArenaArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = arena::ArenaOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            ops: self.op.clone(),
            contenders: self.contender.clone(),
            borrow_hugepages: self.hugepages.borrow_hugepages,
        };
        measure(json, |bar| arena::run(&options, bar))
    }
}

impl SuiteOptions for BenchRegisterArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = register::RegisterOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            backends: self.backend.clone(),
            contenders: self.policy.clone(),
            region_bytes: self.size.clone(),
            contexts: self.contexts.clone(),
            borrow_hugepages: self.hugepages.borrow_hugepages,
        };
        measure(json, |bar| register::run(&options, bar))
    }
}

impl SuiteOptions for BenchOffsetArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = offset::OffsetOptions {
            seed: self.seed,
            quick: self.run.quick,
            reps: self.run.reps,
            contenders: self.contender.clone(),
            workloads: self.workload.clone(),
            neighbour: self.neighbour.then_some(streaming),
        };
        measure(json, |bar| offset::run(&options, bar))
    }
}

impl SuiteOptions for BenchSlabArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = slab::SlabOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            patterns: self.pattern.clone(),
            contenders: self.contender.clone(),
            threads: self.threads.threads.clone(),
            child: Some(alone),
        };
        measure(json, |bar| slab::run(&options, bar))
    }
}

impl SuiteOptions for BenchConcurrencyArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = concurrency::ConcurrencyOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            scenarios: self.scenario.clone(),
            contenders: self.contender.clone(),
            threads: self.threads.threads.clone(),
        };
        measure(json, |bar| concurrency::run(&options, bar))
    }
}

impl SuiteOptions for BenchSimulateArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = simulate::SimulateOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            scenarios: self.scenario.clone(),
            ways: self.way.clone(),
            threads: self.threads.clone(),
            line_ns: self.line_ns.clone(),
            metadata_lines: self.metadata_lines,
            call_ns: self.call_ns,
        };
        measure(json, |bar| simulate::run(&options, bar))
    }
}

impl SuiteOptions for BenchCacheArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn traces(&self) -> &[PathBuf] {
        &self.trace
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let quick = self.run.quick;
        if self.policy {
            let options = cache::hits::HitRateOptions { quick, traces: self.trace.clone() };
            return measure(json, |bar| cache::hits::run(&options, bar));
        }
        let options = cache::CacheOptions {
            quick,
            reps: self.run.reps,
            scenarios: self.scenario.clone(),
            contenders: self.contender.clone(),
            threads: self.threads.threads.clone(),
        };
        measure(json, |bar| cache::run(&options, bar))
    }
}

impl SuiteOptions for BenchTierArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = tier::TierBenchOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            dir: self.dir.clone(),
            contenders: self.contender.clone(),
            beside: self.beside.clone(),
            value_bytes: self.value_bytes.clone(),
            depth: self.depth,
            bytes: self.size,
        };
        measure(json, |bar| tier::run(&options, bar))
    }
}

impl SuiteOptions for BenchNodeArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = node::NodeBenchOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            contenders: self.contender.clone(),
            beside: self.beside.clone(),
            child: acting,
        };
        measure(json, |bar| node::run(&options, bar))
    }
}

impl SuiteOptions for BenchGpuArgs {
    fn common(&self) -> &SuiteArgs {
        &self.run
    }

    fn measure(&self, json: JsonSink) -> SuiteResult {
        let options = gpu::GpuOptions {
            quick: self.run.quick,
            reps: self.run.reps,
            region_bytes: self.size,
            borrow_hugepages: self.hugepages.borrow_hugepages,
            library: None,
        };
        // SAFETY: the library is the driver's, by its name.
        measure(json, |bar| unsafe { gpu::run(&options, bar) })
    }
}

/// Runs one measurement of the slab suite in this process.
fn run_alone(task: &slab::SlabTask) -> Result<(), Failure> {
    let seen = slab::measure(task).map_err(|error| Failure::new(error, 1))?;
    print(format_args!("{seen}\n"))
}

/// The command that runs one measurement of the slab suite.
pub(crate) fn alone(task: &slab::SlabTask) -> Command {
    let mut command = this_program();
    command.args(["bench", "slab", "--alone", &task.to_string()]);
    command
}

/// The command of a process that streams through memory on a processor.
fn streaming(processor: usize) -> Command {
    let mut command = this_program();
    command.args(["bench", "offset", "--stream", &processor.to_string()]);
    command
}

/// The command of a process of a node's measurement.
fn acting(role: &node::NodeRole) -> Command {
    let mut command = this_program();
    command.args(["bench", "node", "--role", &role.to_string()]);
    command
}

fn this_program() -> Command {
    // The link leads to the running program, even if its file was replaced.
    Command::new("/proc/self/exe")
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
