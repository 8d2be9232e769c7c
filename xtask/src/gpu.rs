//! *GPU*: what can be checked and measured only beside a GPU, in one command.
//!
//! The tests of the CUDA registrar run on the real driver where there is one, and `kvmem-lab bench
//! gpu` measures registering and copies. Without a driver the tests run on their stand-in, the
//! benchmark says why nothing was measured, and the command ends with success.
//!
//! A machine with a GPU often has no toolchain and no network. The [`bundle`] is all of it as an
//! archive, which one script runs there.

mod bundle;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::bench_suite::suite;
use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};

/// Where the figures go, and what is measured.
#[derive(Args)]
pub(crate) struct GpuOptions {
    /// Write the rows as JSON to FILE (default: gpu.json in the folder of build outputs)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Instead of running anything, make an archive for a machine with a GPU that has no toolchain
    /// and no network: its script `run.sh` tests and measures there
    #[arg(long, conflicts_with_all = ["output", "args"])]
    bundle: bool,

    /// Arguments of `kvmem-lab bench gpu`, behind `--`.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the tests, and then the benchmark.
pub(crate) fn run(root: &Path, options: &GpuOptions) -> Result<ExitCode> {
    if options.bundle {
        let archive = bundle::make(root)?;
        let mib = std::fs::metadata(&archive)?.len().div_ceil(1 << 20);
        println!("{} ({mib} MiB); there:", archive.display());
        println!("tar -xzf kvmem-gpu.tar.gz && kvmem-gpu/run.sh");
        return Ok(ExitCode::SUCCESS);
    }
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

/// Returns the reason why a report of the suite has no rows.
fn why_skipped(report: &Value) -> Option<&str> {
    let nothing = report["rows"].as_array().is_some_and(Vec::is_empty);
    report["skipped"][0]["reason"].as_str().filter(|_| nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_report_without_rows_says_why() {
        let without = json!({"rows": [], "skipped": [{"memory": null, "reason": "no library"}]});
        assert_eq!(why_skipped(&without), Some("no library"));
        let some = json!({"rows": [{}], "skipped": [{"memory": "2m", "reason": "no page"}]});
        assert_eq!(why_skipped(&some), None);
    }
}
