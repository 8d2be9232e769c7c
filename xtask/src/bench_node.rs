//! *Bench node*: `kvmem-lab bench node` with Redis, which `bench/contenders/redis_socket.py` starts
//! and calls, and with LMCache's multi-process server, `bench/contenders/lmcache_server.py`. That
//! one needs PyTorch, so it takes part if `KVMEM_WITH_TORCH` is 1.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::bench_tier::{beside, finish, suite};
use crate::setup::{self, works};
use crate::{engines, venv};

/// What to measure.
#[derive(Args)]
pub(crate) struct BenchNodeOptions {
    /// Arguments of `kvmem-lab bench node`, behind `--`.
    #[arg(last = true)]
    args: Vec<String>,
}

impl BenchNodeOptions {
    /// Measures everything and writes the rows to `file`.
    pub(crate) fn recorded(file: &Path) -> BenchNodeOptions {
        BenchNodeOptions { args: vec!["--json".into(), file.display().to_string()] }
    }
}

/// Builds everything and runs the benchmark. A contender that cannot be had is named and left out.
pub(crate) fn run(root: &Path, options: &BenchNodeOptions) -> Result<ExitCode> {
    let mut bench = suite(root, "node", &options.args);
    let has_redis = || works("redis-server", &["--version"]);
    // The check behind it shows whether it worked.
    let _ = setup::package("redis-server is missing", "redis-server", has_redis);
    if has_redis() && works("python3", &["--version"]) {
        beside(&mut bench, "redis", &root.join("bench/contenders/redis_socket.py"));
    } else {
        println!("redis is left out: redis-server or python3 is missing");
    }
    match engines::lmcache_server(root) {
        Some((python, variables)) => {
            bench.env("PATH", venv::path_with(&python)).envs(variables);
            beside(&mut bench, "lmcache", &root.join("bench/contenders/lmcache_server.py"));
        }
        None => println!("lmcache is left out: KVMEM_WITH_TORCH=1 installs it, with PyTorch"),
    }
    finish(&mut bench)
}
