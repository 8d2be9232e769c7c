//! Benchmark records, filed under their date and machine.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;
use time::OffsetDateTime;

use crate::bench_suite::{self, BenchSuiteOptions};
use crate::workspace::cargo;

/// Which benchmarks to record.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Only these suites (default: all).
    #[arg(value_name = "SUITE", value_parser = SUITES.map(|(suite, _)| suite))]
    suites: Vec<String>,
}

/// The recorded suites, with the endings of their files' names.
const SUITES: [(&str, &str); 8] = [
    ("offset", ""),
    ("arena", "-arena"),
    ("register", "-register"),
    ("slab", "-slab"),
    ("concurrency", "-concurrency"),
    ("cache", "-cache"),
    ("tier", "-tier"),
    ("node", "-node"),
];

/// Runs the full benchmark of every layer and writes its rows to
/// `bench/record/<date>-<machine>.json`. Other layers than offset have their name before the dot.
pub(crate) fn bench(root: &Path, options: &BenchOptions) -> Result<ExitCode> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = format!("{}-{}-{cores}c", OffsetDateTime::now_utc().date(), machine(&cpuinfo));
    let folder = root.join("bench/record");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;

    crate::setup::cmake()?;
    crate::setup::glib();
    let wanted =
        |suite: &str| options.suites.is_empty() || options.suites.iter().any(|name| name == suite);
    for (suite, ending) in SUITES.into_iter().filter(|(suite, _)| wanted(suite)) {
        let file = folder.join(format!("{name}{ending}.json"));
        let status = match suite {
            "tier" => bench_suite::tier(root, &BenchSuiteOptions::recorded(&file))?,
            "node" => bench_suite::node(root, &BenchSuiteOptions::recorded(&file))?,
            _ => alone(root, suite, &file)?,
        };
        if status != ExitCode::SUCCESS {
            eprintln!("the benchmark of {suite} failed");
            return Ok(ExitCode::FAILURE);
        }
        println!("recorded in {}", file.strip_prefix(root).unwrap_or(&file).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a suite whose contenders are all parts of the command.
fn alone(root: &Path, suite: &str, file: &Path) -> Result<ExitCode> {
    let mut bench = Command::new(cargo());
    bench.current_dir(root).args(["run", "--profile", "bench", "--locked"]);
    bench.args(["--package", "kvmem-lab", "--features", "allocators"]);
    bench.args(["--", "bench", suite, "--json"]).arg(file);
    bench_suite::finish(&mut bench)
}

/// Returns the processor's model as lower-case words joined by `-`.
fn machine(cpuinfo: &str) -> String {
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':').map(|(_, m)| m));
    let words: Vec<String> = model
        .unwrap_or(std::env::consts::ARCH)
        .replace("(R)", " ")
        .replace("(TM)", " ")
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_names_are_fit_for_files() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8488C @ \
                       2.4GHz\nmodel name\t: b\n";
        assert_eq!(machine(cpuinfo), "intel-xeon-platinum-8488c-2-4ghz");
        assert_eq!(machine("processor: 0\n"), std::env::consts::ARCH.replace('_', "-"));
    }
}
