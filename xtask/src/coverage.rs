//! *Coverage*: the lines and branches of the product that its tests in Rust execute, by crate.
//!
//! cargo-llvm-cov builds the tests with counters and runs them by nextest. A nightly compiler
//! counts branches. Code of tests is left out. A process that is killed writes no counters, so what
//! only such a process executes counts as missed, and so does what only C, C++ or Python calls.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::run::succeed;
use crate::setup::works;
use crate::venv;

/// The crates whose code counts, each by its own tests and by those of the others.
const PRODUCT: [&str; 7] = [
    "kvmem",
    "kvmem-encoding",
    "kvmem-tier",
    "kvmem-node",
    "kvmem-cluster",
    "kvmem-trace",
    "kvmem-cli",
];
/// Its files: counters, the report of each line, and the lines that no test executes.
const FOLDER: &str = "target/coverage";

/// The tests to run.
#[derive(Args)]
pub(crate) struct CoverageOptions {
    /// Only the tests of these crates (default: all of the product).
    #[arg(value_name = "CRATE", value_parser = PRODUCT)]
    crates: Vec<String>,
    /// Only tests that this filter of nextest selects.
    #[arg(long, short = 'E', value_name = "FILTER")]
    filter: Option<String>,
}

/// Lines and branches: all, and those that were executed.
#[derive(Default, Debug, PartialEq)]
struct Executed {
    lines: u64,
    executed: u64,
    branches: u64,
    taken: u64,
}

/// Runs the tests, prints a row for each crate and writes the lines that were missed.
pub(crate) fn run(root: &Path, options: &CoverageOptions) -> Result<ExitCode> {
    let has_llvm = "ls $(rustc --print sysroot)/lib/rustlib/*/bin/llvm-cov";
    ensure!(
        works("rustup", &["run", "nightly", "sh", "-c", has_llvm]),
        "a nightly toolchain with llvm-cov is missing: \
         rustup toolchain install nightly --component llvm-tools"
    );
    let tools = venv::tools(root)?;
    let bin = tools.program("cargo-llvm-cov");
    // cargo-llvm-cov starts nextest by its name.
    let folders = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    let own = bin.parent().context("a program has no folder")?.to_owned();
    let path = env::join_paths(folders.into_iter().chain([own]))?;
    let report = root.join(FOLDER).join("lines.lcov");
    fs::create_dir_all(root.join(FOLDER))?;
    let mut tests = Command::new(&bin);
    tests.current_dir(root).env("PATH", path).env("RUSTUP_TOOLCHAIN", "nightly");
    tests.env_remove("CARGO").env_remove("RUSTC");
    tests.env("CARGO_LLVM_COV_TARGET_DIR", root.join(FOLDER));
    tests.args(["llvm-cov", "nextest", "--branch", "--locked", "--ignore-run-fail"]);
    // A killed process leaves a file of counters that is cut off.
    tests.args(["--failure-mode", "all", "--lcov", "--output-path"]).arg(&report);
    let crates: Vec<&str> = match &options.crates[..] {
        [] => PRODUCT.to_vec(),
        some => some.iter().map(String::as_str).collect(),
    };
    tests.args(crates.iter().flat_map(|name| ["--package", name]));
    if let Some(filter) = &options.filter {
        tests.args(["-E", filter]);
    }
    succeed(&mut tests)?;
    let text = fs::read_to_string(&report)?;
    let (rows, missed) = count(&text, root);
    fs::write(root.join(FOLDER).join("missed.txt"), missed)?;
    println!("{}", table(&rows));
    println!("Lines that no test executes: {FOLDER}/missed.txt");
    Ok(ExitCode::SUCCESS)
}

/// Executed by crate what a report in lcov's form has, and lists the lines that were missed.
fn count(report: &str, root: &Path) -> (BTreeMap<String, Executed>, String) {
    let (mut rows, mut missed) = (BTreeMap::<String, Executed>::new(), String::new());
    let (mut file, mut lines) = (None, Vec::new());
    for line in report.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            let path = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path));
            file = is_product(path);
            let text = fs::read_to_string(root.join(path)).unwrap_or_default();
            lines = text.lines().map(str::to_owned).collect();
            continue;
        }
        let Some((name, path)) = &file else { continue };
        let row = rows.entry(name.clone()).or_default();
        if let Some((number, times)) = line.strip_prefix("DA:").and_then(|it| it.split_once(',')) {
            row.lines += 1;
            row.executed += u64::from(times != "0");
            if times == "0" {
                let number: usize = number.parse().unwrap_or(0);
                let source = number.checked_sub(1).and_then(|at| lines.get(at));
                let source = source.map_or("", |it| it.trim());
                writeln!(missed, "{path}:{number}: {source}").expect("a string takes all");
            }
        } else if let Some(branch) = line.strip_prefix("BRDA:") {
            row.branches += 1;
            row.taken += u64::from(!branch.ends_with(",0") && !branch.ends_with(",-"));
        }
    }
    (rows, missed)
}

/// Returns crate and path of a file of the product that is no test.
fn is_product(path: &Path) -> Option<(String, String)> {
    let path = path.to_str()?;
    let (name, within) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = within.split(['/', '.']).any(|it| matches!(it, "tests" | "models" | "test"));
    (PRODUCT.contains(&name) && !is_test).then(|| (name.to_owned(), path.to_owned()))
}

fn table(rows: &BTreeMap<String, Executed>) -> String {
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let mut table =
        "| crate | lines | executed | branches | taken |\n|---|---|---|---|---|\n".to_owned();
    for (name, it) in rows {
        let (executed, taken) = (percent(it.executed, it.lines), percent(it.taken, it.branches));
        writeln!(
            table,
            "| {name} | {} | {executed:.1} % | {} | {taken:.1} % |",
            it.lines, it.branches
        )
        .expect("a string takes all");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_branches_are_counted_by_crate() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("crates/kvmem/src")).unwrap();
        fs::write(root.join("crates/kvmem/src/a.rs"), "one\n  two\nthree\n").unwrap();
        let file = |path: &str| format!("SF:{}\n", root.join(path).display());
        let report = [
            &file("crates/kvmem/src/a.rs"),
            "DA:1,7\nDA:2,0\nBRDA:1,0,0,3\nBRDA:1,0,1,0\nBRDA:3,0,0,-\nend_of_record\n",
            &file("crates/kvmem/src/b/tests.rs"),
            "DA:1,0\nend_of_record\n",
            &file("crates/kvmem/tests/it/main.rs"),
            "DA:1,0\n",
            "SF:/elsewhere/src/lib.rs\nDA:1,0\n",
            &file("crates/kvmem-cli/src/main.rs"),
            "DA:1,1\n",
        ]
        .concat();
        let (rows, missed) = count(&report, root);
        assert_eq!(missed, "crates/kvmem/src/a.rs:2: two\n");
        let kvmem = Executed { lines: 2, executed: 1, branches: 3, taken: 1 };
        let command = Executed { lines: 1, executed: 1, ..Executed::default() };
        assert_eq!(rows, BTreeMap::from([("kvmem".into(), kvmem), ("kvmem-cli".into(), command)]));
        assert!(table(&rows).contains("| kvmem | 2 | 50.0 % | 3 | 33.3 % |"));
    }
}
