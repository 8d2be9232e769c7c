//! The long runs: the soak, and benchmark records filed under their date and machine.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use time::OffsetDateTime;

use crate::run::succeed;
use crate::step::{Kind, Report};
use crate::workspace::{cargo, target_folder};
use crate::{bench_node, bench_tier};

/// The length of the soak.
#[derive(Args)]
pub(crate) struct SoakOptions {
    /// Number of operations.
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    ops: u64,
}

/// Which benchmarks to record.
#[derive(Args)]
pub(crate) struct BenchOptions {
    /// Only these suites (default: all).
    #[arg(value_name = "SUITE", value_parser = SUITES.map(|(suite, _)| suite))]
    suites: Vec<String>,
}

/// Runs the library's soak test at this length, through `KVMEM_SOAK_OPS`.
pub(crate) fn soak(root: &Path, options: &SoakOptions) -> Result<ExitCode> {
    let mut soak = Command::new(cargo());
    soak.current_dir(root).env("KVMEM_SOAK_OPS", options.ops.to_string());
    soak.args(["test", "--release", "--locked", "--package", "kvmem", "--test", "it", "soak"]);
    soak.args(["--", "--include-ignored", "--nocapture"]);
    let mut report = Report::default();
    report.command(&format!("soak: {} operations", options.ops), Kind::Tests, &mut soak);
    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Suites with rows on hugepages, which a record must have: they borrow the missing pages.
const ON_HUGEPAGES: [&str; 2] = ["arena", "register"];

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
            "tier" => bench_tier::run(root, &bench_tier::BenchTierOptions::recorded(&file))?,
            "node" => bench_node::run(root, &bench_node::BenchNodeOptions::recorded(&file))?,
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
    if ON_HUGEPAGES.contains(&suite) {
        bench.arg("--borrow-hugepages");
    }
    bench_tier::finish(&mut bench)
}

/// The destination of the page.
#[derive(Args)]
pub(crate) struct ReportOptions {
    /// The file of the page.
    #[arg(value_name = "FILE", default_value = "target/report.html")]
    file: PathBuf,
}

/// Draws the newest record of each suite, from the lowest layer up.
pub(crate) fn report(root: &Path, options: &ReportOptions) -> Result<ExitCode> {
    let page = std::path::absolute(&options.file).context("there is no folder to be in")?;
    // Nothing is measured, so neither optimization nor other allocators are needed.
    let mut build = Command::new(cargo());
    succeed(build.current_dir(root).args(["build", "--locked", "--package", "kvmem-lab"]))?;
    draw(root, &target_folder(root)?.join("debug/kvmem-lab"), &page)?;
    println!("{}", page.display());
    Ok(ExitCode::SUCCESS)
}

/// Draws them with a built laboratory.
pub(crate) fn draw(root: &Path, lab: &Path, page: &Path) -> Result<()> {
    let newest = newest(&root.join("bench/record"))?;
    ensure!(!newest.is_empty(), "nothing is recorded yet: cargo xtask bench-record");
    if let Some(folder) = page.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut draw = Command::new(lab);
    draw.arg("bench");
    for record in &newest {
        draw.arg("--from").arg(record);
    }
    succeed(draw.arg("--html").arg(page).stdout(Stdio::null()))
}

/// Returns the last record of each suite: names begin with the date.
fn newest(folder: &Path) -> Result<Vec<PathBuf>> {
    let list =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files: Vec<PathBuf> = list.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let mut found = Vec::new();
    for suite in ["arena", "register", "offset", "slab", "concurrency", "cache", "tier", "node"] {
        for file in files.iter().rev() {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let rows: serde_json::Value = serde_json::from_str(&text)
                .with_context(|| format!("{} is no record", file.display()))?;
            if rows["suite"] == suite {
                found.push(file.clone());
                break;
            }
        }
    }
    Ok(found)
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
    fn the_newest_record_of_each_suite_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("2026-01-02-a.json", "offset"),
            ("2026-01-10-a.json", "offset"),
            ("2025-12-31-a-slab.json", "slab"),
            ("2026-01-11-a-arena.json", "arena"),
            ("2026-02-01-a-soak.txt", "offset"),
        ];
        for (name, suite) in files {
            std::fs::write(folder.path().join(name), format!("{{\"suite\": \"{suite}\"}}"))
                .unwrap();
        }
        let names: Vec<_> = newest(folder.path())
            .unwrap()
            .iter()
            .map(|file| file.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(
            names,
            ["2026-01-11-a-arena.json", "2026-01-10-a.json", "2025-12-31-a-slab.json"]
        );
    }

    #[test]
    fn machine_names_are_fit_for_files() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8488C @ \
                       2.4GHz\nmodel name\t: b\n";
        assert_eq!(machine(cpuinfo), "intel-xeon-platinum-8488c-2-4ghz");
        assert_eq!(machine("processor: 0\n"), std::env::consts::ARCH.replace('_', "-"));
    }
}
