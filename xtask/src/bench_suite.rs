//! *Bench suites* with contenders that are programs of other people's code.
//!
//! `kvmem-lab bench tier` meets fio, the usual generator of I/O, by `bench/contenders/fio.py`;
//! foyer's disk cache, a program in `bench/contenders/foyer` with its own lock file; SGLang's disk
//! path, by `bench/contenders/hicache_file.py` and the wheel that the tests install. `kvmem-lab
//! bench node` meets Redis, which `bench/contenders/redis_socket.py` starts and calls, and
//! LMCache's multi-process server, by `bench/contenders/lmcache_server.py`. That one needs PyTorch,
//! so it takes part if `KVMEM_WITH_TORCH` is 1.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::setup::{self, works};
use crate::workspace::cargo;
use crate::{engines, venv};

/// What to measure.
#[derive(Args)]
pub(crate) struct BenchSuiteOptions {
    /// Arguments of the suite of `kvmem-lab bench`, behind `--`.
    #[arg(last = true)]
    args: Vec<String>,
}

impl BenchSuiteOptions {
    /// Measures everything and writes the rows to `file`.
    pub(crate) fn recorded(file: &Path) -> BenchSuiteOptions {
        BenchSuiteOptions { args: vec!["--json".into(), file.display().to_string()] }
    }
}

/// Builds everything and runs the benchmark. A contender that cannot be had is named and left out.
pub(crate) fn tier(root: &Path, options: &BenchSuiteOptions) -> Result<ExitCode> {
    let mut bench = suite(root, "tier", &options.args);
    if setup::tool("fio", "fio", "it does not take part") {
        beside(&mut bench, "fio", &root.join("bench/contenders/fio.py"));
    }
    match foyer(root) {
        Some(program) => beside(&mut bench, "foyer", &program),
        None => println!("foyer is left out: it cannot be built"),
    }
    // numpy comes with NIXL.
    match engines::named(root, &["NIXL", "SGLang"]) {
        Some((python, variables)) => {
            bench.env("PATH", venv::path_with(&[&python])).envs(variables);
            beside(&mut bench, "hicache-file", &root.join("bench/contenders/hicache_file.py"));
        }
        None => println!("hicache-file is left out: SGLang's wheel or numpy is missing"),
    }
    finish(&mut bench)
}

/// Builds everything and runs the benchmark. A contender that cannot be had is named and left out.
pub(crate) fn node(root: &Path, options: &BenchSuiteOptions) -> Result<ExitCode> {
    let mut bench = suite(root, "node", &options.args);
    let has_redis = || works("redis-server", &["--version"]);
    // The check behind it shows whether it worked.
    let _ = setup::package("redis-server is missing", "redis-server", has_redis);
    if has_redis() && works("python3", &["--version"]) {
        beside(&mut bench, "redis", &root.join("bench/contenders/redis_socket.py"));
    } else {
        println!("redis is left out: redis-server or python3 is missing");
    }
    match engines::named(root, &["LMCache", "PyTorch", "LMCache-server"]) {
        Some((python, variables)) => {
            bench.env("PATH", venv::path_with(&[&python])).envs(variables);
            beside(&mut bench, "lmcache", &root.join("bench/contenders/lmcache_server.py"));
        }
        None => println!("lmcache is left out: KVMEM_WITH_TORCH=1 installs it, with PyTorch"),
    }
    finish(&mut bench)
}

/// Runs a suite whose contenders are all parts of the command.
pub(crate) fn alone(root: &Path, name: &str, options: &BenchSuiteOptions) -> Result<ExitCode> {
    finish(&mut with_features(root, &["--features", "allocators"], name, &options.args))
}

/// Returns the command that builds the benchmarks and runs a suite.
pub(crate) fn suite(root: &Path, name: &str, args: &[String]) -> Command {
    with_features(root, &[], name, args)
}

fn with_features(root: &Path, features: &[&str], name: &str, args: &[String]) -> Command {
    let mut bench = Command::new(cargo());
    bench.current_dir(root).args(["run", "--profile", "bench", "--locked"]).args(features);
    bench.args(["--package", "kvmem-lab", "--", "bench", name]).args(args);
    bench
}

/// Runs the command.
pub(crate) fn finish(bench: &mut Command) -> Result<ExitCode> {
    let status = bench.status().context("cannot run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets a program take part.
pub(crate) fn beside(bench: &mut Command, name: &str, program: &Path) {
    bench.arg("--beside").arg(format!("{name}={}", program.display()));
}

/// Builds the programs with foyer, and returns the benchmark's.
pub(crate) fn foyer(root: &Path) -> Option<PathBuf> {
    let target = root.join("target/contenders");
    let mut build = Command::new(cargo());
    build.args(["build", "--release", "--locked", "--target-dir"]).arg(&target);
    build.current_dir(root.join("bench/contenders/foyer"));
    build
        .status()
        .is_ok_and(|status| status.success())
        .then(|| target.join("release/kvmem-bench-foyer"))
}
