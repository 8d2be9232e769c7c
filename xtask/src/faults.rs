//! *Faults*: experiments with faults on other systems: `bench/contenders/faults`.
//!
//! Each peer is a program in Python there, which needs the peer's packages and NumPy; foyer's also
//! a program in Rust. A peer that cannot be installed is named and left out. `docs/faults.md` has
//! what came of them. No other chore runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::bench_suite::{finish, foyer};
use crate::{engines, venv};

/// What to run.
#[derive(Args)]
pub(crate) struct FaultsOptions {
    /// The system
    #[arg(value_enum)]
    peer: Peer,

    /// The experiments; all by default
    experiments: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// SGLang's backend of files, HiCacheFile
    Sglang,
    /// foyer's disk cache
    Foyer,
    /// vLLM's tier of files
    Vllm,
    /// LMCache's second level in files
    LmcacheFiles,
    /// LMCache's multi-process server
    LmcacheServer,
    /// Mooncake Store
    Mooncake,
    /// kvmem's disk tier, in the same experiments
    Kvmem,
}

impl Peer {
    /// Returns the program, and the names of the packages that it needs. NumPy comes with NIXL.
    fn program(self) -> (&'static str, &'static [&'static str]) {
        const LMCACHE: &[&str] = &["LMCache", "PyTorch", "LMCache-server"];
        match self {
            Peer::Sglang => ("sglang_files.py", &["NIXL", "SGLang"]),
            Peer::Foyer => ("foyer_cache.py", &["NIXL"]),
            Peer::Vllm => ("vllm_files.py", &["NIXL", "vLLM"]),
            Peer::LmcacheFiles => ("lmcache_files.py", LMCACHE),
            Peer::LmcacheServer => ("lmcache_server.py", LMCACHE),
            Peer::Mooncake => ("mooncake_store.py", &["NIXL", "Mooncake"]),
            Peer::Kvmem => ("kvmem_tier.py", &[]),
        }
    }
}

/// Runs the experiments of a peer, if it can be had.
pub(crate) fn run(root: &Path, options: &FaultsOptions) -> Result<ExitCode> {
    let (program, packages) = options.peer.program();
    let mut faults = Command::new("python3");
    faults.arg(root.join("bench/contenders/faults").join(program)).args(&options.experiments);
    // The environment of the tests in Python has the package.
    let tests = root.join("target/python/venv/bin");
    let found: Option<(PathBuf, _)> = match options.peer {
        Peer::Kvmem => tests.exists().then(|| (tests, Vec::new())),
        _ => engines::named(root, packages),
    };
    let Some((python, variables)) = found else {
        println!("skipped: {}", missing(options.peer, packages));
        return Ok(ExitCode::SUCCESS);
    };
    if options.peer == Peer::Foyer {
        foyer(root).context("foyer cannot be built: see above")?;
    }
    finish(faults.env("PATH", venv::path_with(&[&python])).envs(variables))
}

/// Returns why a peer is not here, and what installs it.
fn missing(peer: Peer, packages: &[&str]) -> String {
    match peer {
        Peer::Kvmem => "the package is not installed: `cargo xtask test python` does that".into(),
        Peer::LmcacheFiles | Peer::LmcacheServer => {
            "LMCache imports PyTorch (6 GB): KVMEM_WITH_TORCH=1 installs both".into()
        }
        _ => format!("{} cannot be installed: see above", packages.join(" or ")),
    }
}
