//! `kvmem-lab bench`: runs suites and prints their reports.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::Result;
use kvmem::register::cuda::Cuda;
use kvmem_cli::output::{Failure, JsonSink, print};
use kvmem_cli::output_file::OutputFiles;
use serde::Serialize;

use super::args::{BenchArgs, CacheArgs, Suite};
use super::suite::{Report, Run, SuiteArgs};
use super::{arena, cache, codec, concurrency, gpu, node, offset, register, simulate, slab, tier};

/// Runs the benchmarks that `args` select, and prints their reports.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.suite {
        Some(suite) => one(suite),
        None => {
            let run = SuiteArgs { quick: args.quick, ..SuiteArgs::default() };
            let cache = CacheArgs { run: run.clone(), ..CacheArgs::default() };
            for suite in [
                Suite::Arena(run.clone()),
                Suite::Register(run.clone()),
                Suite::Offset(run.clone()),
                Suite::Slab(run.clone()),
                Suite::Concurrency(run),
                Suite::Cache(cache),
            ] {
                one(&suite)?;
                print("\n")?;
            }
            Ok(())
        }
    }
}

fn one(suite: &Suite) -> Result<(), Failure> {
    match suite {
        Suite::Arena(args) => reported("arena", args, arena::run),
        Suite::Register(args) => reported("register", args, register::run),
        Suite::Offset(args) => reported("offset", args, offset::run),
        Suite::Slab(args) => reported("slab", args, |run| {
            slab::run(run, |task| slab::in_child(this_program("slab-task", task)))
        }),
        Suite::Concurrency(args) => reported("concurrency", args, concurrency::run),
        Suite::Cache(args) if args.policy => {
            reported("cache-policy", &args.run, |run| cache::hits::run(run, &args.trace))
        }
        Suite::Cache(args) => reported("cache", &args.run, cache::run),
        Suite::Simulate(args) => {
            let mut of_run = args.run.clone();
            if args.places > 0 && !of_run.table.is_empty() {
                of_run.table.push("waits".to_owned());
            }
            reported("simulate", &of_run, |run| simulate::run(run, args.places))
        }
        Suite::Tier(args) => reported("tier", &args.run, |run| tier::run(run, args)),
        Suite::Codec(args) => reported("codec", &args.run, |run| codec::run(run, args)),
        Suite::Node(args) => {
            let child = |role: &_| this_program("node-role", role);
            reported("node", &args.run, |run| node::run(run, &args.beside, child))
        }
        Suite::Gpu(args) => reported("gpu", &args.run, |run| {
            // SAFETY: the library is the driver's, by its name.
            unsafe { gpu::run(run, OsStr::new(Cuda::LIBRARY), args.size) }
        }),
        Suite::SlabTask { task } => {
            let seen = slab::measure(task).map_err(failed)?;
            print(format_args!("{}\n", serde_json::json!(seen)))
        }
        Suite::NodeRole { role } => node::act(role, &mut std::io::stdout()).map_err(failed),
    }
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::new(format_args!("{error:#}"), 1)
}

/// Runs a suite, and shows its report.
fn reported(
    name: &'static str,
    args: &SuiteArgs,
    suite: impl FnOnce(&mut Run) -> Result<()>,
) -> Result<(), Failure> {
    let json = JsonSink::open(&mut OutputFiles::new(), args.json.as_deref())?;
    let mut run = Run::new(name, args);
    let report: Result<Report> = suite(&mut run).and_then(|()| run.finish());
    let report = report.map_err(failed)?;
    json.write(&report, &report)
}

/// Returns the command that runs this program with a hidden subcommand of `bench`, which takes
/// `what` as JSON.
fn this_program(subcommand: &str, what: &impl Serialize) -> Command {
    // The link leads to the running program, even if its file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench", subcommand, &serde_json::json!(what).to_string()]);
    command
}
