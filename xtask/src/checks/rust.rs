//! The workspace: its format, lints, tests, examples and documentation.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::bail;

use super::{BUILD, TARGET, cargo_in};
use crate::chaos;
use crate::deploy;
use crate::engines;
use crate::programs::{self, Program, ProgramKind};
use crate::run;
use crate::say;
use crate::schedule::{MACHINE, Task};
use crate::setup;
use crate::step::{Kind, Report};

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
    let mut lint = |name: &str, args: &[&str]| {
        let mut clippy = cargo_in(root, &["clippy"]);
        clippy.args(args).args(["--locked", "--", "-D", "warnings"]);
        report.command(name, Kind::Plain, &mut clippy)
    };
    lint("clippy", &["--workspace", "--all-targets"]);
    // With the tests, the C library has the feature `testing`; a shipped one does not.
    lint("clippy: the C library as it is shipped", &["--package", "kvmem-capi"]);
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
    /// The tests of the benchmarks and of the laboratory.
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

/// Returns the tasks that build the programs of the workspace and run them.
pub(super) fn programs(root: &Path, wanted: Wanted) -> Vec<Task<'_>> {
    let mut tasks = Vec::new();
    if wanted.tests || wanted.lab {
        tasks.push(Task::new("test", "setup", move |_| {
            setup::rdma_library();
            setup::glib();
            setup::chromium();
            setup::c_tools();
            engines::for_rust(root);
        }));
        let doc = Task::new("test", "doc tests", move |report| {
            let mut doc = cargo_in(root, &["test", "--locked", "--doc"]);
            report.command("test: doc", Kind::Tests, doc.args(tested(wanted)));
        });
        if wanted.tests {
            tasks.push(doc.after(BUILD).with(TARGET).background());
        }
    }
    if wanted.any() {
        let run = move |report: &mut Report| {
            // With the tests, everything is built at once: examples and the command too.
            let args = match wanted.tests || wanted.lab {
                true => {
                    if wanted.lab
                        && let Err(error) = setup::cmake()
                    {
                        without_allocators(report, error);
                    }
                    [vec!["test", "--locked", "--no-run"], tested(wanted)].concat()
                }
                false => BUILT_ALONE.to_vec(),
            };
            let variables = [("MAKEFLAGS", OsStr::new(JEMALLOC_MAKEFLAGS))];
            let programs = programs::build_with(root, report, "build", &args, &variables);
            added(root, programs, wanted)
        };
        tasks.push(Task::growing("build", BUILD, run).with(TARGET));
    }
    tasks
}

/// Returns the arguments that choose the packages whose tests are built. The laboratory is always
/// among them: the attacks run its command.
fn tested(wanted: Wanted) -> Vec<&'static str> {
    let more = Wanted { lab: false, ..wanted }.any();
    let packages: &[&str] = if more { &["--workspace"] } else { &["--package", "kvmem-lab"] };
    [packages, if wanted.lab { allocators() } else { &[] }].concat()
}

/// The folders of the benchmarks and of the laboratory.
const LAB: [&str; 1] = ["lab"];
/// The newest commits in which a change of them is looked for.
const COMMITS: &str = "-30";

/// Returns whether the newest commits or the work tree change the benchmarks or the laboratory.
/// Says if not.
pub(super) fn has_lab_changed(root: &Path) -> bool {
    let said = |arguments: &[&str]| {
        let mut git = Command::new("git");
        run::output(git.current_dir(root).args(arguments).arg("--").args(LAB))
    };
    let changes = [&["log", COMMITS, "--oneline"][..], &["status", "--porcelain"]];
    // Without git everything is tested.
    let has_changed = changes.iter().any(|change| said(change).is_ok_and(|said| !said.is_empty()))
        || said(&["log", "-1"]).is_err();
    if !has_changed {
        println!(
            "(the laboratory is tested without other allocators, because none of 30 commits \
             changes it: cargo xtask test lab)"
        );
    }
    has_changed
}

/// What jemalloc's makefile leaves out: the static library that is not linked, and the lists of
/// headers that a second build would use. Each file is compiled twice instead of three times, and
/// read by the compiler no further three times.
const JEMALLOC_MAKEFLAGS: &str = "STATIC_LIBS=lib/libjemalloc_pic.a CC_MM=";

/// The command that builds what groups other than the tests run.
const BUILT_ALONE: [&str; 15] = [
    "build",
    "--locked",
    "-p",
    "kvmem",
    "-p",
    "kvmem-capi",
    "-p",
    "kvmem-cli",
    "-p",
    "kvmem-lab",
    "-p",
    "kvmem-node",
    "--lib",
    "--bins",
    "--examples",
];

/// Returns a task for each test program, one for the examples, one for the attacks, and one for
/// what is deployed.
fn added(root: &Path, programs: Vec<Program>, wanted: Wanted) -> Vec<Task<'_>> {
    let (mut tasks, mut examples) = (Vec::new(), Vec::new());
    let mut command = PathBuf::new();
    for program in programs {
        match program.kind {
            ProgramKind::Test => {
                let is_lab = LAB.iter().any(|lab| program.folder.ends_with(lab));
                if is_lab && wanted.lab {
                    tasks.push(test("lab", program));
                } else if !is_lab && wanted.tests {
                    tasks.push(test("test", program));
                }
            }
            ProgramKind::Example if is_run(&program) => examples.push(program),
            ProgramKind::Command if program.target == "kvmem" => command = program.path,
            _ => {}
        }
    }
    if wanted.examples {
        tasks.push(Task::new("examples", "examples", move |report| {
            if examples.is_empty() {
                report.check("examples", || bail!("crate kvmem has no examples"));
            }
            for example in examples {
                let name = format!("example: {}", example.target);
                report.command(&name, Kind::Plain, &mut example.command());
            }
        }));
    }
    if wanted.deploy {
        let command = command.clone();
        tasks.push(Task::new("deploy", "deploy", move |report| {
            deploy::run(root, &command, report);
        }));
    }
    if wanted.chaos {
        let attack = move |report: &mut Report| chaos::quick(root, &command, report);
        tasks.push(Task::new("chaos", "chaos", attack).with(MACHINE));
    }
    tasks
}

/// Returns whether an example is run: those that need no arguments, and check what they show.
fn is_run(example: &Program) -> bool {
    let of_node = ["two_engines", "rolling_restart"];
    example.folder.ends_with("crates/kvmem")
        || example.folder.ends_with("crates/kvmem-node") && of_node.contains(&&*example.target)
}

/// Returns the task that runs a test program.
fn test<'a>(group: &'static str, program: Program) -> Task<'a> {
    let name = format!("{group}: {}", program.name);
    // These tests change limits of the machine, and count what is left of its hugepages.
    let needs_machine = program.target == "alone";
    let step = name.clone();
    let task = Task::new(group, name, move |report| {
        report.command(&step, Kind::Program, &mut program.command());
    });
    let task = task.after("setup");
    if needs_machine { task.with(MACHINE) } else { task }
}

/// Returns the arguments that add the allocators built from C and C++ to the benchmarks, if these
/// can be built.
fn allocators() -> &'static [&'static str] {
    match setup::has_cmake() {
        true => &["--features", "kvmem-lab/allocators"],
        false => &[],
    }
}

/// Says that the benchmarks are tested without the allocators, or fails if they are required.
fn without_allocators(report: &mut Report, error: anyhow::Error) {
    if engines::required() {
        report.check("allocators", || Err(error));
    } else {
        say!("(the benchmarks are not tested with the other allocators: {error:#})");
    }
}

/// Returns the tasks for the time between two edits of the library.
pub(super) fn quick(root: &Path) -> Vec<Task<'_>> {
    let lint = |report: &mut Report| {
        report.command(
            "quick: fmt",
            Kind::Plain,
            &mut cargo_in(root, &["fmt", "--all", "--check"]),
        );
        let mut clippy = cargo_in(root, &["clippy", "--locked", "--package", "kvmem"]);
        clippy.args(["--all-targets", "--", "-D", "warnings"]);
        report.command("quick: clippy", Kind::Plain, &mut clippy);
    };
    let build = |report: &mut Report| {
        let args = ["test", "--locked", "--package", "kvmem", "--no-run", "--lib", "--tests"];
        let programs = programs::build(root, report, "quick: build", &args);
        let tests = programs.into_iter().filter(|program| program.kind == ProgramKind::Test);
        tests.map(|program| test("quick", program)).collect()
    };
    vec![
        Task::growing("quick", "quick: build", build).with(TARGET),
        Task::new("quick", "quick: lint", lint).after("quick: build").with(TARGET).background(),
    ]
}
