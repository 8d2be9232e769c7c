//! The workspace: its format, lints, tests, examples and documentation.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::{BUILD, SIMULATOR, TARGET, cargo_in};
use crate::chaos;
use crate::deploy;
use crate::dist::files;
use crate::engines;
use crate::programs;
use crate::say;
use crate::schedule::{MACHINE, Task};
use crate::setup;
use crate::step::{Kind, Report};
use crate::workspace::target_folder;

/// Checks the format.
pub(super) fn fmt(root: &Path, report: &mut Report) {
    if report.check("setup: rustfmt", || setup::component("fmt", "rustfmt")) {
        report.command("fmt", Kind::Plain, &mut cargo_in(root, &["fmt", "--all", "--check"]));
    }
}

/// Runs clippy on everything that is built.
pub(super) fn clippy(root: &Path, report: &mut Report) {
    if !report.check("setup: clippy", || setup::component("clippy", "clippy")) {
        return;
    }
    for (name, args) in [
        ("clippy", &["--workspace", "--all-targets"][..]),
        // With the tests, the C library has the feature `testing`; a shipped one does not.
        ("clippy: the C library as it is shipped", &["--package", "kvmem-capi"]),
    ] {
        let mut clippy = cargo_in(root, &["clippy", "--locked"]);
        report.command(name, Kind::Plain, clippy.args(args).args(["--", "-D", "warnings"]));
    }
}

/// Builds the documentation.
pub(super) fn doc(root: &Path, report: &mut Report) {
    let mut doc = cargo_in(root, &["doc", "--workspace", "--no-deps", "--locked"]);
    report.command("doc", Kind::Plain, doc.env("RUSTDOCFLAGS", "-D warnings"));
}

/// Which of the programs that cargo builds are to be run.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) tests: bool,
    /// Without the tests of the night.
    pub(super) quick: bool,
    /// The tests of the laboratory.
    pub(super) lab: bool,
    pub(super) examples: bool,
    pub(super) chaos: bool,
    pub(super) deploy: bool,
    /// The Python package, which contains the command and the C library.
    pub(super) python: bool,
}

impl Wanted {
    /// Whether any program is built.
    pub(super) fn any(self) -> bool {
        self.tests || self.lab || self.examples || self.chaos || self.deploy || self.python
    }
}

/// The tests that change limits of the machine, and count what is left of its hugepages.
const ALONE: &str = "binary(=alone)";
/// The tests that repeat others under valgrind, and take as long as all others of their crate.
const NIGHTLY: &str = "test(/::in_valgrind$/)";
/// The tests of the laboratory.
const LAB: &str = "package(=kvmem-lab)";

/// Histories of whole nodes that each run simulates: about 30,000 steps, and 20 s of a processor.
const HISTORIES: u64 = 45;

/// Returns the tasks that build the programs of the workspace and run them.
pub(super) fn programs(root: &Path, wanted: Wanted) -> Vec<Task<'_>> {
    let Wanted { tests, lab, examples, quick, .. } = wanted;
    let mut tasks = Vec::new();
    if wanted.any() {
        let build = move |report: &mut Report| build(root, wanted, report);
        tasks.push(Task::new("build", BUILD, build).with(TARGET));
    }
    if tests || lab {
        tasks.push(Task::new("test", "setup", move |_| {
            setup::for_tests();
            engines::for_rust(root);
        }));
    }
    let program = |group, name, filter: String| {
        let run = move |report: &mut Report| programs::test(root, report, name, &filter, &[]);
        Task::new(group, name, run).after(BUILD).after("setup")
    };
    if tests {
        let alone = program("test", "test: alone", ALONE.to_owned());
        tasks.push(alone.with(MACHINE));
        let left_out = if wanted.quick { NIGHTLY } else { "none()" };
        let simulated = format!("test(={})", SIMULATOR);
        let others = format!("not ({ALONE} | {LAB} | {left_out} | {simulated})");
        tasks.push(program("test", "test", others));
        // Other seeds in each run: those of the second in which it begins.
        let seed = chaos::clock();
        let step = format!("test: simulated nodes, KVMEM_TEST_SEED={seed}");
        let simulate = move |report: &mut Report| {
            let variables = [("KVMEM_TEST_SEED", seed), ("KVMEM_TEST_ROUNDS", HISTORIES)];
            programs::test(root, report, &step, &simulated, &variables);
        };
        tasks.push(Task::new("test", "simulated nodes", simulate).after(BUILD));
    }
    if lab {
        tasks.push(program("lab", "lab", LAB.to_owned()));
    }
    if wanted.chaos {
        let attack = move |report: &mut Report| chaos::quick(root, &kvmem(root), report);
        tasks.push(Task::new("chaos", "chaos", attack).after(BUILD).with(MACHINE));
    }
    if wanted.deploy {
        let deploy = move |report: &mut Report| deploy::run(root, &kvmem(root), quick, report);
        tasks.push(Task::new("deploy", "deploy", deploy).after(BUILD));
    }
    if examples {
        let run = move |report: &mut Report| run_examples(root, report);
        tasks.push(Task::new("examples", "examples", run).after(BUILD));
    }
    if tests {
        let doc = move |report: &mut Report| {
            let mut doc = cargo_in(root, &["test", "--locked", "--doc", "--workspace"]);
            report.command("test: doc", Kind::Tests, &mut doc);
        };
        tasks.push(Task::new("test", "doc tests", doc).after(BUILD).with(TARGET).background());
    }
    tasks
}

/// Returns the path of the built command.
fn kvmem(root: &Path) -> std::path::PathBuf {
    target_folder(root).unwrap_or_default().join("debug/kvmem")
}

/// What jemalloc's makefile leaves out: the static library that is not linked, and the lists of
/// headers that a second build would use. Each file is compiled twice instead of three times, and
/// read by the compiler no further three times.
const JEMALLOC_MAKEFLAGS: &str = "STATIC_LIBS=lib/libjemalloc_pic.a CC_MM=";

/// Builds everything that groups run: the tests, and with their features the command, the
/// libraries and the examples.
fn build(root: &Path, wanted: Wanted, report: &mut Report) {
    // The group `fuzz` builds its programs with optimization.
    let mut packages = vec!["--workspace", "--exclude", "kvmem-fuzz"];
    if wanted.lab {
        match setup::cmake() {
            Ok(()) => packages.extend(["--features", "kvmem-lab/allocators,kvmem-lab/compressors"]),
            Err(error) if engines::required() => {
                report.check("allocators", || Err(error));
            }
            Err(error) => say!("(the laboratory's other allocators are not tested: {error:#})"),
        }
    }
    // With examples cargo takes the features of tests in any case: all groups share what is built.
    let mut build = cargo_in(root, &["build", "--locked", "--lib", "--bins", "--examples"]);
    let has_tests = wanted.tests || wanted.lab;
    build.args(has_tests.then_some("--tests")).args(&packages);
    let is_built = report.command("build", Kind::Plain, build.env("MAKEFLAGS", JEMALLOC_MAKEFLAGS));
    if is_built && has_tests {
        programs::list(root, report, &packages);
    }
}

/// Runs the examples that need no arguments, and check what they show.
fn run_examples(root: &Path, report: &mut Report) {
    let of_kvmem = root.join("crates/kvmem/examples");
    let mut names = Vec::new();
    report.check("examples", || {
        for file in files(&of_kvmem)?.iter().filter(|file| file.extension().is_some()) {
            names.push(file.file_stem().context("an example has no name")?.to_owned());
        }
        anyhow::ensure!(!names.is_empty(), "{} is empty", of_kvmem.display());
        Ok(())
    });
    let built = kvmem(root).with_file_name("examples");
    for name in names.into_iter().chain(["two_engines".into(), "rolling_restart".into()]) {
        let mut example = Command::new(built.join(&name));
        let step = format!("example: {}", name.display());
        report.command(&step, Kind::Plain, example.current_dir(root.join("crates/kvmem")));
    }
}

/// Returns the tasks for the time between two edits of the library.
pub(super) fn quick(root: &Path) -> Vec<Task<'_>> {
    let test = |report: &mut Report| {
        let args = ["run", "--locked", "--package", "kvmem"];
        match programs::nextest(root, &args) {
            Ok(mut tests) => drop(report.command("quick: tests", Kind::Tests, &mut tests)),
            Err(error) => drop(report.check("quick: tests", || Err(error))),
        }
    };
    let lint = |report: &mut Report| {
        fmt(root, report);
        let args = ["clippy", "--locked", "--package", "kvmem", "--all-targets"];
        let mut clippy = cargo_in(root, &args);
        report.command("quick: clippy", Kind::Plain, clippy.args(["--", "-D", "warnings"]));
    };
    vec![
        Task::new("quick", "quick: tests", test).with(TARGET),
        Task::new("quick", "quick: lint", lint).with(TARGET).background(),
    ]
}
