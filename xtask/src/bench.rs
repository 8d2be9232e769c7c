//! *Bench*: suites of `kvmem-lab bench` that need another build or another machine.
//!
//! - `simulate` runs the loops of many threads on simulated cores. A wrapper in `xtask/rustc` has
//!   the compiler report the library's accesses; see `kvmem-testkit`'s module `cores`.
//! - `gpu` measures memory for a GPU, after the tests of the CUDA registrar on the real driver.
//!   Without a driver the tests run on their stand-in, the benchmark says why nothing was measured,
//!   and the command ends with success.
//! - A machine with many cores or a GPU often has no toolchain and no network. The [`bundle`] is
//!   all suites as an archive, which one script runs there.

mod bundle;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::bench_suite::{finish, suite};
use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};

/// The suite, or the bundle.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// The suite
    #[arg(value_enum, required_unless_present = "bundle")]
    suite: Option<BenchSuite>,

    /// Write the rows of `gpu` as JSON to FILE (default: gpu.json in the folder of build outputs)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Instead of running anything, make an archive for a machine that has no toolchain and no
    /// network: its script `run.sh` measures there, within six minutes. `bench-record --from` files
    /// the rows
    #[arg(long, conflicts_with_all = ["suite", "output", "args"])]
    bundle: bool,

    /// Arguments of the suite of `kvmem-lab bench`, behind `--`.
    #[arg(last = true)]
    args: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchSuite {
    /// The loops of many threads, in virtual time
    Simulate,
    /// Memory for this machine's GPU
    Gpu,
}

/// Runs a suite, or makes the bundle.
pub(crate) fn run(root: &Path, options: &BenchOptions) -> Result<ExitCode> {
    match options.suite {
        Some(BenchSuite::Simulate) => simulate(root, &options.args),
        Some(BenchSuite::Gpu) => gpu(root, options),
        None => {
            let archive = bundle::make(root)?;
            let mib = std::fs::metadata(&archive)?.len().div_ceil(1 << 20);
            println!("{} ({mib} MiB); there:", archive.display());
            println!("tar -xzf {0}.tar.gz && {0}/run.sh", bundle::NAME);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Builds the laboratory for simulated cores, in a target folder of its own, and runs the suite.
fn simulate(root: &Path, args: &[String]) -> Result<ExitCode> {
    let mut bench = Command::new(cargo());
    bench.current_dir(root).args(["run", "--release", "--locked", "--target-dir"]);
    bench.arg(target_folder(root)?.join("simulated"));
    bench.args(["--package", "kvmem-lab", "--", "bench", "simulate"]).args(args);
    finish(bench.env("RUSTC_WORKSPACE_WRAPPER", root.join("xtask/rustc/simulated")))
}

/// Runs the tests, and then the benchmark.
fn gpu(root: &Path, options: &BenchOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    let mut tests = Command::new(cargo());
    tests.current_dir(root).args(["test", "--locked", "--package", "kvmem", "--test", "it"]);
    tests.args(["--", "register::cuda", "--nocapture"]);
    report.command("gpu: the CUDA registrar", Kind::Tests, &mut tests);

    let json = match &options.output {
        Some(file) => file.clone(),
        None => target_folder(root)?.join("gpu.json"),
    };
    let mut bench = suite(root, "gpu", &options.args);
    bench.arg("--json").arg(&json);
    report.command("gpu: kvmem-lab bench gpu", Kind::Plain, &mut bench);
    let measured = report.total().failed == 0;
    report.print();
    if !measured {
        return Ok(ExitCode::FAILURE);
    }
    let text = std::fs::read_to_string(&json)
        .with_context(|| format!("cannot read {}", json.display()))?;
    match why_skipped(&serde_json::from_str(&text)?) {
        Some(reason) => println!("skipped: {reason}"),
        None => println!("rows: {}", json.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the reason why a report has no rows.
pub(crate) fn why_skipped(report: &Value) -> Option<&str> {
    let nothing = report["rows"].as_array().is_some_and(Vec::is_empty);
    report["skipped"][0].as_str().filter(|_| nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_without_rows_says_why() {
        let without = json!({"rows": [], "skipped": ["2m: no library"]});
        assert_eq!(why_skipped(&without), Some("2m: no library"));
        let some = json!({"rows": [{}], "skipped": ["2m: no page"]});
        assert_eq!(why_skipped(&some), None);
    }
}
