//! Benchmark records, filed under their date and machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use time::OffsetDateTime;

use crate::bench::why_skipped;
use crate::bench_suite::{self, BenchSuiteOptions};

/// Which benchmarks to record.
#[derive(Args)]
pub(crate) struct RecordOptions {
    /// Only these suites (default: all but `gpu`).
    #[arg(value_name = "SUITE", value_parser = SUITES)]
    suites: Vec<String>,

    /// Run nothing, and file the rows that the bundle of `cargo xtask bench --bundle` has left in
    /// FOLDER on another machine
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,

    /// File them in FOLDER instead of bench/record
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// The recorded suites.
const SUITES: [&str; 9] =
    ["offset", "arena", "register", "slab", "concurrency", "cache", "tier", "node", "gpu"];

/// Returns the path of a suite's file. That of `offset` has no ending.
fn file_of(suite: &str, machine: &str, folder: &Path) -> PathBuf {
    let ending = if suite == "offset" { "" } else { &*format!("-{suite}") };
    folder.join(format!("{machine}{ending}.json"))
}

/// Runs the full benchmark of every layer and writes its rows to
/// `bench/record/<date>-<machine>.json`. Other layers than offset have their name before the dot.
pub(crate) fn bench(root: &Path, options: &RecordOptions) -> Result<ExitCode> {
    let folder = options.to.clone().unwrap_or_else(|| root.join("bench/record"));
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    let wanted = |suite: &str| match &options.suites[..] {
        [] => suite != "gpu" || options.from.is_some(),
        suites => suites.iter().any(|name| name == suite),
    };
    if let Some(from) = &options.from {
        for line in file_all(from, &folder, wanted)? {
            println!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = format!("{}-{}-{cores}c", OffsetDateTime::now_utc().date(), machine(model));

    crate::setup::cmake()?;
    crate::setup::glib();
    for suite in SUITES.into_iter().filter(|suite| wanted(suite)) {
        let file = file_of(suite, &name, &folder);
        let options = BenchSuiteOptions::recorded(&file);
        let status = match suite {
            "tier" => bench_suite::tier(root, &options)?,
            "node" => bench_suite::node(root, &options)?,
            _ => bench_suite::alone(root, suite, &options)?,
        };
        if status != ExitCode::SUCCESS {
            eprintln!("the benchmark of {suite} failed");
            return Ok(ExitCode::FAILURE);
        }
        println!("recorded in {}", file.strip_prefix(root).unwrap_or(&file).display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Files the rows that a bundle has left in a folder; returns a line for each suite.
fn file_all(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let date = read(&from.join("date"))?;
    let date = date.trim();
    let number = |part: &str| part.parse::<u16>().is_ok().then_some(part.len());
    let is_date = date.split('-').map(number).eq([Some(4), Some(2), Some(2)]);
    ensure!(is_date, "{}/date says {date:?}, and not a day as 2026-11-30", from.display());
    let mut lines = Vec::new();
    for suite in SUITES.into_iter().filter(|suite| wanted(suite)) {
        let rows = from.join(format!("{suite}.json"));
        if !rows.is_file() {
            continue;
        }
        let text = read(&rows)?;
        let report: Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is no report: measure again", rows.display()))?;
        if let Some(reason) = why_skipped(&report) {
            lines.push(format!("{suite}: nothing was measured: {reason}"));
            continue;
        }
        let of = &report["machine"];
        let (Some(cpu), Some(cores), Some(kernel)) =
            (of["cpu"].as_str(), of["cores"].as_u64(), of["kernel"].as_str())
        else {
            bail!("{} names no processor, cores and kernel", rows.display());
        };
        ensure!(report["suite"] == suite, "{} has rows of {}", rows.display(), report["suite"]);
        let file = file_of(suite, &format!("{date}-{}-{cores}c", machine(cpu)), to);
        ensure!(
            !file.exists(),
            "{} exists: remove it first, or use --to with another folder",
            file.display()
        );
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let rows = report["rows"].as_array().map_or(0, Vec::len);
        let file = file.display();
        lines.push(format!("{suite}: {rows} rows of {cpu}, {cores} cores, {kernel}: {file}"));
    }
    ensure!(!lines.is_empty(), "{} has no rows of a suite: run.sh left none", from.display());
    Ok(lines)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns the processor's model as lower-case words joined by `-`.
fn machine(model: &str) -> String {
    let words: Vec<String> = model
        .replace("(R)", " ")
        .replace("(TM)", " ")
        .split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty() && *word != "Processor")
        .map(str::to_ascii_lowercase)
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn machine_names_are_fit_for_files() {
        let model = " Intel(R) Xeon(R) Platinum 8488C @ 2.4GHz";
        assert_eq!(machine(model), "intel-xeon-platinum-8488c-2-4ghz");
        assert_eq!(machine("Intel(R) Xeon(R) Processor"), "intel-xeon");
        assert_eq!(machine("x86_64"), "x86-64");
    }

    fn report(suite: &str, rows: &Value, skipped: &Value) -> String {
        let machine = json!({"cpu": "AMD EPYC", "cores": 16, "kernel": "6.18.44"});
        json!({"suite": suite, "machine": machine, "rows": rows, "skipped": skipped}).to_string()
    }

    #[test]
    fn rows_of_a_bundle_are_filed_by_date_and_machine() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let put = |name: &str, text: &str| std::fs::write(from.path().join(name), text).unwrap();
        put("date", "2026-11-30\n");
        put("offset.json", &report("offset", &json!([{}, {}]), &json!([])));
        put("arena.json", &report("arena", &json!([{}]), &json!([])));
        put("gpu.json", &report("gpu", &json!([]), &json!(["gpu: no library"])));
        put("other.json", "rows of another program");
        let lines = file_all(from.path(), to.path(), |_| true).unwrap();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("offset: 2 rows of AMD EPYC, 16 cores, 6.18.44: "));
        assert_eq!(lines[2], "gpu: nothing was measured: gpu: no library");
        let filed = |name: &str| std::fs::read_to_string(to.path().join(name)).unwrap();
        assert_eq!(
            filed("2026-11-30-amd-epyc-16c.json"),
            report("offset", &json!([{}, {}]), &json!([]))
        );
        assert!(filed("2026-11-30-amd-epyc-16c-arena.json").contains("6.18.44"));
        let again = file_all(from.path(), to.path(), |_| true).unwrap_err().to_string();
        assert!(again.contains("exists: remove it first"), "{again}");
    }

    #[test]
    fn rows_that_say_not_whose_they_are_are_not_filed() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let put = |name: &str, text: &str| std::fs::write(from.path().join(name), text).unwrap();
        let error = || file_all(from.path(), to.path(), |_| true).unwrap_err().to_string();
        assert!(error().contains("cannot read"), "{}", error());
        put("date", "yesterday");
        assert!(error().contains("says \"yesterday\""), "{}", error());
        put("date", "2026-11-30");
        assert!(error().contains("has no rows of a suite"), "{}", error());
        for (text, expected) in [
            (report("cache", &json!([{}]), &json!([])), "has rows of \"cache\""),
            (json!({"suite": "node", "rows": [{}]}).to_string(), "names no processor"),
            ("{".to_owned(), "is no report"),
        ] {
            put("node.json", &text);
            assert!(error().contains(expected), "{}", error());
        }
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
    }
}
