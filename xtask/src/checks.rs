//! `cargo xtask test`: runs every check of the project as a sequence of named steps.
//!
//! A failing step does not stop the run. The last line is the sum over all steps, `N passed, N
//! failed`. Every test counts once, and so does every step that does not consist of tests.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::Args;

use crate::chaos;
use crate::dist;
use crate::engines;
use crate::package;
use crate::prose;
use crate::python;
use crate::setup;
use crate::step::{Kind, Report};
use crate::workspace::{cargo, targets};

/// The steps to run, and their duration.
#[derive(Args)]
pub(crate) struct TestOptions {
    /// Seconds of random inputs for each fuzz target.
    #[arg(long, value_name = "N", default_value_t = 5)]
    fuzz_seconds: u64,
    /// Run only these groups of steps (default: all).
    #[arg(value_enum, value_name = "GROUP")]
    groups: Vec<Group>,
}

/// The groups of steps, in the order they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Group {
    /// `cargo fmt --check`, workspace and fuzz targets.
    Fmt,
    /// The mechanical rules of the language: lengths of lines, names, sentences.
    Prose,
    /// clippy with warnings as errors, workspace and fuzz targets.
    Clippy,
    /// Unit, integration and doc tests.
    Test,
    /// Attacks on the command that take less than a minute: `cargo xtask chaos --quick`.
    Chaos,
    /// The library's examples: runs them.
    Examples,
    /// The Python package: its format and lints, its wheel in a new environment, tests and types.
    Python,
    /// Model checks of the concurrent parts: every schedule of small cases.
    Loom,
    /// The same model under random schedules of larger cases.
    Shuttle,
    /// Every fuzz target: its stored corpus, then random inputs.
    Fuzz,
    /// The documentation, built with warnings as errors.
    Doc,
    /// The packages of the crates that are published: their contents, licences and public API. The
    /// parts of the archive that is shipped: manual pages, completions, notices.
    Package,
}

/// Runs the steps and prints the summary. The exit status is 1 if any step failed.
pub(crate) fn run(root: &Path, options: &TestOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    let wanted = |group| options.groups.is_empty() || options.groups.contains(&group);

    if report.check("setup: C linker", setup::linker) && report.check("setup: CMake", setup::cmake)
    {
        if wanted(Group::Fmt) {
            fmt(root, &mut report);
        }
        if wanted(Group::Prose) {
            prose::run(root, &mut report);
        }
        if wanted(Group::Clippy) {
            clippy(root, &mut report);
        }
        if wanted(Group::Test) {
            setup::rdma_library();
            setup::glib();
            setup::chromium();
            engines::for_rust(root);
            setup::c_tools();
            let mut tests = cargo_in(root, &["test", "--workspace", "--locked", "--no-fail-fast"]);
            report.command("test: unit, integration, doc", Kind::Tests, &mut tests);
        }
        if wanted(Group::Chaos)
            && let Err(error) = chaos::attack_all(root, &chaos::ChaosOptions::quick(), &mut report)
        {
            report.check("chaos", || Err(error));
        }
        if wanted(Group::Examples) {
            examples(root, &mut report);
        }
        if wanted(Group::Python) {
            python::run(root, &mut report);
        }
        if wanted(Group::Loom) {
            loom(root, &mut report);
        }
        if wanted(Group::Shuttle) {
            shuttle(root, &mut report);
        }
        if wanted(Group::Fuzz) {
            fuzz(root, &mut report, options.fuzz_seconds);
        }
        if wanted(Group::Doc) {
            let mut doc = cargo_in(root, &["doc", "--workspace", "--no-deps", "--locked"]);
            report.command("doc", Kind::Plain, doc.env("RUSTDOCFLAGS", "-D warnings"));
        }
        if wanted(Group::Package) {
            package::quick(root, &mut report);
            dist::quick(root, &mut report);
        }
    }

    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn fmt(root: &Path, report: &mut Report) {
    if report.check("setup: rustfmt", || setup::component("fmt", "rustfmt")) {
        report.command("fmt", Kind::Plain, &mut cargo_in(root, &["fmt", "--all", "--check"]));
        let mut fuzz = cargo_in(root, &["fmt", "--manifest-path", FUZZ, "--check"]);
        report.command("fmt: fuzz targets", Kind::Plain, &mut fuzz);
    }
}

fn clippy(root: &Path, report: &mut Report) {
    if report.check("setup: clippy", || setup::component("clippy", "clippy")) {
        let mut clippy = cargo_in(root, &["clippy", "--workspace", "--all-targets", "--locked"]);
        report.command("clippy", Kind::Plain, clippy.args(["--", "-D", "warnings"]));
        // With the tests, the C library has the feature `testing`; a shipped one does not.
        let mut shipped = cargo_in(root, &["clippy", "--package", "kvmem-capi", "--locked"]);
        let name = "clippy: the C library as it is shipped";
        report.command(name, Kind::Plain, shipped.args(["--", "-D", "warnings"]));
        let mut fuzz = cargo_in(root, &["clippy", "--manifest-path", FUZZ, "--all-targets"]);
        report.command("clippy: fuzz targets", Kind::Plain, fuzz.args(["--", "-D", "warnings"]));
    }
}

/// Runs every example of the library, because an example that no longer runs misleads its readers.
fn examples(root: &Path, report: &mut Report) {
    let mut names = Vec::new();
    report.check("examples: list", || {
        names = targets(&root.join("crates/kvmem/Cargo.toml"), "example")?;
        ensure!(!names.is_empty(), "crate kvmem has no examples");
        Ok(())
    });
    for name in names {
        let mut example =
            cargo_in(root, &["run", "--locked", "--package", "kvmem", "--example", &name]);
        report.command(&format!("example: {name}"), Kind::Plain, &mut example);
    }
}

/// Runs the model checks in every order: the library is built against loom's atomics.
fn loom(root: &Path, report: &mut Report) {
    let mut loom = models(root, "--cfg loom", "target/loom");
    report.command("loom", Kind::Tests, &mut loom);
}

/// Runs the model checks that are for random schedules: the library is built against shuttle's
/// atomics.
fn shuttle(root: &Path, report: &mut Report) {
    let mut shuttle = models(root, "--cfg loom --cfg shuttle", "target/shuttle");
    report.command("shuttle", Kind::Tests, &mut shuttle);
}

/// Returns the command of the model checks, which are unit tests in modules `models`. They have a
/// target folder of their own, because the flags would otherwise rebuild everything twice.
fn models(root: &Path, flags: &str, target: &str) -> Command {
    let mut models =
        cargo_in(root, &["test", "--profile", "models", "--locked", "--package", "kvmem"]);
    models.env("RUSTFLAGS", flags).args(["--target-dir", target, "--lib", "models::"]);
    models
}

/// Runs every fuzz target: first its stored corpus, then random inputs. If cargo-fuzz and a nightly
/// toolchain are installed, runs it guided by coverage as well.
fn fuzz(root: &Path, report: &mut Report, seconds: u64) {
    let mut names = Vec::new();
    report.check("fuzz: list", || {
        names = targets(&root.join(FUZZ), "bin")?;
        ensure!(!names.is_empty(), "{FUZZ} has no [[bin]]");
        for name in &names {
            std::fs::create_dir_all(root.join(scratch_corpus(name)))?;
        }
        Ok(())
    });
    let seconds = seconds.to_string();
    let guided = !names.is_empty() && setup::can_guide_fuzzing();
    for name in &names {
        let mut replay =
            cargo_in(root, &["run", "--release", "--manifest-path", FUZZ, "--bin", name]);
        replay.args(["--", "--seconds", &seconds]);
        report.command(&format!("fuzz: {name}"), Kind::Plain, &mut replay);
        if guided {
            // New inputs go into the first folder; the stored corpus is only read.
            let mut guided = Command::new("rustup");
            guided.current_dir(root).args(["run", "nightly", "cargo", "fuzz", "run", name]);
            guided.args([&scratch_corpus(name), &format!("fuzz/corpus/{name}"), "--"]);
            guided.arg(format!("-max_total_time={seconds}"));
            report.command(&format!("fuzz: {name}, guided by coverage"), Kind::Plain, &mut guided);
        }
    }
    if !names.is_empty() && !guided {
        println!(
            "(for fuzzing guided by coverage: rustup toolchain install nightly && cargo install \
             cargo-fuzz)"
        );
    }
}

/// Returns the folder in which coverage-guided runs store the inputs that they find.
fn scratch_corpus(name: &str) -> String {
    format!("target/fuzz-corpus/{name}")
}

/// Manifest of the fuzz targets, which are a workspace of their own.
const FUZZ: &str = "fuzz/Cargo.toml";

fn cargo_in(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.current_dir(root).args(args);
    command
}
