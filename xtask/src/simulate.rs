//! *Simulate*: histories of whole nodes in virtual time, by their seeds.
//!
//! The simulator is part of the unit tests of `kvmem-node`. The chore builds them optimized, with
//! assertions, and passes the seeds on. A history that fails is made short, and is printed with its
//! seed; `--first SEED --seeds 1` repeats it.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::checks::{CHECKS, SIMULATOR};
use crate::run::shown;
use crate::workspace::cargo;

/// Which histories to run.
#[derive(Args)]
pub(crate) struct SimulateOptions {
    /// Run this number of seeds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Begin with this seed.
    #[arg(long, default_value_t = 0, value_name = "SEED")]
    first: u64,
    /// Choose this number of steps in each history, before its faults end.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
}

/// Runs the histories.
pub(crate) fn run(root: &Path, options: &SimulateOptions) -> Result<ExitCode> {
    let SimulateOptions { seeds, first, steps } = options;
    let mut tests = Command::new(cargo());
    tests.current_dir(root).args(["test", "--profile", "checks", "--target-dir", CHECKS]);
    tests.args([
        "--locked",
        "-p",
        "kvmem-node",
        "--lib",
        "--",
        "--exact",
        "--nocapture",
        SIMULATOR,
    ]);
    // Two and a half times as fast as with the profile's own level.
    tests.env("CARGO_PROFILE_CHECKS_OPT_LEVEL", "3");
    for (name, value) in [("ROUNDS", seeds), ("SEED", first), ("STEPS", steps)] {
        tests.env(format!("KVMEM_TEST_{name}"), value.to_string());
    }
    shown("histories of whole nodes", &mut tests)?;
    Ok(ExitCode::SUCCESS)
}
