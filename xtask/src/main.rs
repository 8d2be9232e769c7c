//! The project's own chores, run as `cargo xtask <command>`.
//!
//! One binary instead of a folder of scripts. CI, newcomers and maintainers run the same code, and
//! a Rust toolchain is all that it needs.
//!
//! - [`checks`] has the steps of `cargo xtask test`, [`schedule`] runs them side by side, [`step`]
//!   shows their [`output`] in one piece and counts their tests, [`programs`] are what they run;
//! - [`setup`] and [`venv`] install the tools that steps need, [`scratch`] has their temporary
//!   files, [`run`] runs commands that must succeed, [`workspace`] asks cargo what it contains;
//! - [`python`] tests the Python package, with the [`engines`] around kvmem; [`vllm_cpu`] is one
//!   that generates tokens, and [`engines_matrix`] writes what was tested with which versions;
//! - [`deploy`] runs the tests in `xtask/tests`, [`chaos`] attacks the built command, [`sanitize`]
//!   runs the tests under the sanitizers and Miri, [`coverage`] counts what they execute,
//!   [`mutants`] looks for changes that no test notices, [`simulate`] runs nodes in virtual time;
//! - [`install`], [`dist`], [`wheel`], [`package`] make what is shipped, by the [`layout`] of the C
//!   interface and with the [`notices`] of the crates inside; [`site`] makes the documentation;
//! - [`count`], [`drop_in`], [`mod@bench`], [`bench_suite`], [`bench_engine`] measure, and
//!   [`record`] files it; [`faults`] runs experiments with faults on other systems.

mod bench;
mod bench_engine;
mod bench_suite;
mod chaos;
mod checks;
mod count;
mod coverage;
mod deploy;
mod dist;
mod drop_in;
mod engines;
mod engines_matrix;
mod faults;
mod install;
mod layout;
mod mutants;
mod notices;
mod output;
mod package;
mod programs;
mod python;
mod record;
mod run;
mod sanitize;
mod schedule;
mod scratch;
mod setup;
mod simulate;
mod site;
mod step;
mod venv;
mod vllm_cpu;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// kvmem's own chores.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check everything: format, lints, unit, integration, doc and example tests, the Python
    /// package, loom models, fuzz targets, documentation; independent groups side by side. Goes on
    /// after a failing step and ends with `N passed, N failed`. `test quick` checks the library
    /// alone, after each edit.
    Test(checks::TestOptions),
    /// Run the tests under AddressSanitizer, ThreadSanitizer and Miri, as far as a nightly
    /// toolchain has them; missing tools are reported as skipped.
    Sanitize(sanitize::SanitizeOptions),
    /// Count the lines and branches of the product that its tests in Rust execute, by crate, and
    /// list the lines that none executes. Takes a nightly toolchain with llvm-tools.
    Coverage(coverage::CoverageOptions),
    /// Change the code of the most critical layers in one place after the other, and list the
    /// changes that no unit test notices. Takes cargo-mutants; `.cargo/mutants.toml` has the files.
    /// `--switched` builds all of them at once, and judges a few each second.
    Mutants(mutants::MutantsOptions),
    /// Run histories of whole nodes in virtual time, with kills, stops and failing disks. A history
    /// that fails is made short, and its seed repeats it.
    Simulate(simulate::SimulateOptions),
    /// Attack the command and the tests: small limits, outputs that fail, hostile files, signals,
    /// several instances at once. Every attack must end in time, with a documented status and an
    /// error that says what to do.
    Chaos(chaos::ChaosOptions),
    /// Build the C interface and install it: headers, libraries, and the files for pkg-config and
    /// CMake.
    Install(install::InstallOptions),
    /// Collect the licences of all crates that are compiled into the Python wheel, in
    /// `crates/kvmem-python/THIRD-PARTY.md`.
    Notices(notices::NoticesOptions),
    /// Build the archive that is shipped: the command, the C library, manual pages, completions,
    /// licences, checksums and a list of parts.
    Dist(dist::DistOptions),
    /// Pack the crates that are published and build them from their packages; compare licences and
    /// public API where the tools for that are installed.
    Package(package::PackageOptions),
    /// Build the Python wheels that are shipped, with the command and the C library inside, and
    /// test them in clean environments.
    Wheel(wheel::WheelOptions),
    /// Run the full benchmarks and file their rows as `bench/record/<date>-<machine>.json`
    /// (offset), `bench/record/<date>-<machine>-arena.json` and so on, or file those that a bundle
    /// has measured elsewhere. Rows on hugepages need free ones (vm.nr_hugepages).
    BenchRecord(record::RecordOptions),
    /// Count instructions and mispredicted branches of the loops over allocators of offsets, under
    /// cachegrind: figures that no machine and no neighbour changes.
    Count(count::CountOptions),
    /// Time the class for C++ that replaces Mooncake's allocator, beside a model of that allocator
    /// behind the same functions, on one thread and on several.
    DropIn(drop_in::DropInOptions),
    /// Measure the disk tier beside foyer and SGLang's disk path: `kvmem-lab bench tier` with these
    /// contenders, which are built and installed first.
    BenchTier(bench_suite::BenchSuiteOptions),
    /// Measure one pool for several processes beside Redis: `kvmem-lab bench node` with this
    /// contender, whose server is installed first.
    BenchNode(bench_suite::BenchSuiteOptions),
    /// Measure vLLM on the CPU with kvmem's tiers: seconds to the first token, tokens a second of
    /// long sessions, or a soak with kills, stops and damage. Installs 6 GB the first time.
    BenchEngine(bench_engine::BenchEngineOptions),
    /// Run experiments with faults on another system: damaged, full and failing files, kills,
    /// stops, leases. `docs/faults.md` has what came of them.
    Faults(faults::FaultsOptions),
    /// Run the loops of many threads on simulated cores (`simulate`); test the CUDA registrar on
    /// this machine's driver and measure memory for its GPU (`gpu`); or make an archive of the
    /// benchmarks for another machine (`--bundle`).
    Bench(bench::BenchOptions),
    /// Write the table of `docs/engines.md` from the outcomes of the last runs of `test python` and
    /// `test dynamo`: which features were tested, with which versions and modules.
    EnginesMatrix(engines_matrix::EnginesMatrixOptions),
    /// Build the documentation as a site that needs no network and no server: all pages of the
    /// repository, the reference of every language, the figures.
    Site(site::SiteOptions),
    /// Check that each text is a chore with options that it has, and run none of them.
    #[command(hide = true)]
    Parse {
        /// Commands, each as one text: `cargo xtask test quick`.
        commands: Vec<String>,
    },
}

/// Fails if a command is no chore.
fn parse(commands: &[String]) -> Result<ExitCode> {
    let mut faults = Vec::new();
    for command in commands {
        let words = command.split_whitespace().collect::<Vec<_>>();
        let is_chore = words.starts_with(&["cargo", "xtask"]);
        match Cli::try_parse_from(words.into_iter().skip(usize::from(is_chore))) {
            Ok(_) if is_chore => {}
            // A question for help is answered, too.
            Err(error) if is_chore && !error.use_stderr() => {}
            Err(error) if is_chore => {
                let reason = error.to_string();
                faults.push(format!("{command:?}: {}", reason.lines().next().unwrap_or_default()));
            }
            _ => faults.push(format!("{command:?} is no chore: make it one, to be run by hand")),
        }
    }
    anyhow::ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn main() -> Result<ExitCode> {
    let root = workspace::root()?;
    // The commands of a step are a process group, which the terminal does not interrupt.
    step::child::end_all_on_signals().context("cannot receive signals")?;
    match Cli::parse().chore {
        Chore::Test(options) => checks::run(&root, &options),
        Chore::Sanitize(options) => sanitize::run(&root, &options),
        Chore::Coverage(options) => coverage::run(&root, &options),
        Chore::Mutants(options) => mutants::run(&root, &options),
        Chore::Simulate(options) => simulate::run(&root, &options),
        Chore::Chaos(options) => chaos::run(&root, &options),
        Chore::Install(options) => install::run(&root, &options),
        Chore::Notices(options) => notices::run(&root, &options),
        Chore::Dist(options) => dist::run(&root, &options),
        Chore::Package(options) => package::run(&root, &options),
        Chore::Wheel(options) => wheel::run(&root, &options),
        Chore::BenchRecord(options) => record::bench(&root, &options),
        Chore::Count(options) => count::run(&root, &options),
        Chore::DropIn(options) => drop_in::run(&root, &options),
        Chore::BenchTier(options) => bench_suite::tier(&root, &options),
        Chore::BenchNode(options) => bench_suite::node(&root, &options),
        Chore::BenchEngine(options) => bench_engine::run(&root, &options),
        Chore::Faults(options) => faults::run(&root, &options),
        Chore::Bench(options) => bench::run(&root, &options),
        Chore::EnginesMatrix(options) => engines_matrix::run(&root, &options),
        Chore::Site(options) => site::run(&root, &options),
        Chore::Parse { commands } => parse(&commands),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn chores_are_told_from_other_commands() {
        let parse = |command: &str| parse(&[command.to_owned()]);
        assert!(parse("cargo xtask site --check").is_ok());
        assert!(parse("cargo xtask test --help").is_ok());
        for wrong in ["cargo xtask site --chek", "cargo xtask sight", "make", "cargo test"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
