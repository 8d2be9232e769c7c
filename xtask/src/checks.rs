//! `cargo xtask test`: every check of the project, independent ones side by side.
//!
//! A group of checks is some tasks of the [`schedule`]. Commands of cargo that share the target
//! folder run one at a time, because cargo locks it; the test programs that they build run at the
//! same time. A failing step does not stop the run. The last line is the sum over all steps, `N
//! passed, N failed`. Every test counts once, and so does every step that does not consist of
//! tests.
//!
//! A run without a choice of groups is to end in ten minutes on two processors. [`NIGHTLY`] has the
//! groups that it leaves out; CONTRIBUTING.md says why.
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
use crate::workspace::cargo;

/// The steps to run, and their duration.
#[derive(Args)]
pub(crate) struct TestOptions {
    /// Seconds of random inputs for each fuzz target.
    #[arg(long, value_name = "N", default_value_t = 2)]
    fuzz_seconds: u64,
    /// How many tasks run at a time (default: one more than processors, because tests wait).
    #[arg(long, value_name = "N")]
    lanes: Option<usize>,
    /// Run all groups, as every night and before a release.
    #[arg(long, conflicts_with = "groups")]
    all: bool,
    /// Run only these groups of steps (default: all but `quick`, which is a part of the others, and
    /// those of the night: `lab`, `engine`, `shuttle`, `simulated`, `fuzz`, `site`, `dynamo`).
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
    /// Simulated cores: that loops of many threads take the same virtual time in each run, and that
    /// known shapes come out.
    Simulated,
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

/// The groups that run every night and before a release.
const NIGHTLY: [Group; 7] = [
    Group::Lab,
    Group::Engine,
    Group::Shuttle,
    Group::Simulated,
    Group::Fuzz,
    Group::Site,
    Group::Dynamo,
];

/// Cargo's target folder of the workspace, which one command at a time may use.
const TARGET: &str = "target";
/// The target folder of the model checks and the fuzz targets.
pub(crate) const CHECKS: &str = "target/checks";

/// The test that runs histories of whole nodes.
pub(crate) const SIMULATOR: &str = "simulator::history::tests::nodes_keep_their_promises";
/// The task that builds the test programs.
const BUILD: &str = "build";

/// Runs the steps and prints the summary. The exit status is 1 if any step failed.
pub(crate) fn run(root: &Path, options: &TestOptions) -> Result<ExitCode> {
    let wanted = |group| match &options.groups[..] {
        [] => group != Group::Quick && (options.all || !NIGHTLY.contains(&group)),
        chosen => chosen.contains(&group),
    };
    let has_engine = wanted(Group::Engine);
    let has_python = wanted(Group::Python) || has_engine;
    let quick = options.groups.is_empty() && !options.all;
    let programs = rust::Wanted {
        tests: wanted(Group::Test),
        quick,
        lab: wanted(Group::Lab),
        examples: wanted(Group::Examples),
        chaos: wanted(Group::Chaos),
        deploy: wanted(Group::Deploy),
        python: has_python,
    };
    let mut tasks = Vec::new();
    // They take longest, because they wait most.
    if has_python {
        tasks.extend(python::tasks(root, wanted(Group::Python), has_engine, quick));
    }
    if wanted(Group::Fmt) {
        tasks.push(Task::new("fmt", "fmt", |report| rust::fmt(root, report)));
    }
    if wanted(Group::Quick) {
        tasks.extend(rust::quick(root));
    }
    tasks.extend(rust::programs(root, programs));
    if wanted(Group::Prose) {
        tasks.push(Task::new("prose", "prose", |report| {
            deploy::tests(root, Path::new("kvmem"), "prose", report);
        }));
    }
    let checkers =
        [(Group::Loom, "loom"), (Group::Shuttle, "shuttle"), (Group::Simulated, "simulated")];
    for (group, checker) in checkers {
        if wanted(group) {
            tasks.push(models::task(root, checker));
        }
    }
    if wanted(Group::Fuzz) {
        tasks.push(fuzz::task(root, options.fuzz_seconds));
    }
    // They compile with cargo's target folder, after what is built there.
    let mut compiling = |group, name, work: fn(&Path, bool, &mut Report)| {
        if wanted(group) {
            let task = Task::new(name, name, move |report| work(root, programs.any(), report));
            tasks.push(task.after(BUILD).after("setup").with(TARGET).background());
        }
    };
    compiling(Group::Clippy, "clippy", |root, _, report| rust::clippy(root, report));
    compiling(Group::Doc, "doc", |root, _, report| rust::doc(root, report));
    compiling(Group::Package, "package", |root, built, report| {
        package::quick(root, report);
        dist::quick(root, built, report);
        for folder in ["engines", "parts", "wheel"] {
            deploy::tests(root, Path::new("kvmem"), folder, report);
        }
    });
    compiling(Group::Site, "site", site::test);
    if wanted(Group::Dynamo) {
        tasks.push(dynamo::task(root));
    }
    if has_engine {
        tasks.push(python::engine_task(root).after_all(&tasks));
    }

    let _scratch = Scratch::begin().context("cannot make a folder for temporary files")?;
    let mut report = Report::in_group("setup", false);
    if report.check("setup: C linker", || setup::required("cc", "build-essential")) {
        let lanes = options.lanes.unwrap_or_else(|| {
            thread::available_parallelism().map_or(2, |processors| processors.get() + 1)
        });
        report.append(schedule::run(tasks, lanes.max(1)));
    }
    report.finish()
}

fn cargo_in(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(root).args(args);
    command
}
