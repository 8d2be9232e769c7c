//! The project's own chores, run as `cargo xtask <command>`.
//!
//! One binary instead of a folder of scripts. CI, newcomers and maintainers run the same code, and
//! a Rust toolchain is all that it needs.
//!
//! - [`checks`] names the steps of `cargo xtask test`,
//! - [`step`] runs a step, shows its output, counts its tests and keeps its time,
//! - [`setup`] looks for the tools that the steps need and installs those it can,
//! - [`workspace`] asks cargo what the workspace contains, so that no list is kept twice,
//! - [`prose`] checks the mechanical rules of the language: lines, names, sentences,
//! - [`python`] builds the Python package and runs its tests, with the [`engines`] around kvmem,
//! - [`sanitize`] runs the tests under the sanitizers and Miri,
//! - [`chaos`] attacks the built command: limits, broken outputs, hostile files, signals,
//! - [`install`] builds the C interface and installs it by the [`layout`],
//! - [`notices`] collects the licences of the crates that are linked into the wheel,
//! - [`wheel`] builds the Python wheels that are shipped, and tests them,
//! - [`record`] files a benchmark run under its date and machine, and draws the records.

mod chaos;
mod checks;
mod engines;
mod install;
mod layout;
mod notices;
mod prose;
mod python;
mod record;
mod sanitize;
mod setup;
mod step;
mod wheel;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
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
    /// package, loom models, fuzz targets, documentation. Goes on after a failing step and ends
    /// with `N passed, N failed`.
    Test(checks::TestOptions),
    /// Run the tests under AddressSanitizer, ThreadSanitizer and Miri, as far as a nightly
    /// toolchain has them; missing tools are reported as skipped.
    Sanitize(sanitize::SanitizeOptions),
    /// Attack the command and the tests: small limits, outputs that fail, hostile files, signals,
    /// several instances at once. Every attack must end in time, with a documented status and an
    /// error that says what to do.
    Chaos(chaos::ChaosOptions),
    /// Build the C interface and install it: headers, libraries, and the files for pkg-config and
    /// CMake.
    Install(install::InstallOptions),
    /// Collect the licences of all crates that are linked into the Python wheel, in
    /// `crates/kvmem-python/THIRD-PARTY.md`.
    Notices(notices::NoticesOptions),
    /// Build the Python wheels that are shipped, with the command and the C library inside, and
    /// test them in clean environments.
    Wheel(wheel::WheelOptions),
    /// Run the long soak: a mixed sequence of operations against the interval oracle.
    Soak(record::SoakOptions),
    /// Run the full benchmarks and file their rows as `bench/record/<date>-<machine>.json`
    /// (offset), `bench/record/<date>-<machine>-arena.json` and
    /// `bench/record/<date>-<machine>-register.json`. Suites on hugepages borrow the pages that
    /// the machine lacks (vm.nr_hugepages), and return them.
    BenchRecord(record::BenchOptions),
    /// Draw the newest recorded run of every suite as one page.
    Report(record::ReportOptions),
}

fn main() -> Result<ExitCode> {
    let root = workspace::root()?;
    match Cli::parse().chore {
        Chore::Test(options) => checks::run(&root, &options),
        Chore::Sanitize(options) => sanitize::run(&root, &options),
        Chore::Chaos(options) => chaos::run(&root, &options),
        Chore::Install(options) => install::run(&root, &options),
        Chore::Notices(options) => notices::run(&root, &options),
        Chore::Wheel(options) => wheel::run(&root, &options),
        Chore::Soak(options) => record::soak(&root, &options),
        Chore::BenchRecord(options) => record::bench(&root, &options),
        Chore::Report(options) => record::report(&root, &options),
    }
}
