//! *Wheel*: the Python package as it is shipped, for x86_64 and aarch64.
//!
//! A wheel has the extension module, the `kvmem` command, and the C library with its headers. All
//! three are built with the profile `dist` and linked by `zig cc`, which brings stubs of every
//! version of glibc: [`target`] says which one. A compiler of Debian for another architecture would
//! link the glibc of the builder's release, and the wheel would run on younger systems only.
//!
//! - [`target`] names the architectures and the oldest system,
//! - [`tools`] installs what builds and tests a wheel,
//! - [`build`] compiles the parts and makes the wheel,
//! - [`unwinder`] keeps zig's copy of the unwinder out of the libraries,
//! - [`stage`] lays out the files that the wheel gets beside maturin's,
//! - `xtask/tests/wheel/links.py` rejects what needs more than libc or names a builder's folder,
//! - [`check`] installs a wheel into clean environments, [`emulated`] one of another architecture.

mod build;
mod check;
mod emulated;
pub(crate) mod stage;
mod target;
mod tools;
mod unwinder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use self::target::{Target, Targets};
use crate::notices;
use crate::say;
use crate::step::Report;
use crate::workspace::target_folder;

/// The targets, the folder of the wheels, and whether they are tested.
#[derive(clap::Args)]
pub(crate) struct WheelOptions {
    /// The architecture of the wheel.
    #[arg(long, value_enum, default_value_t = Targets::host())]
    target: Targets,
    /// The folder that gets the wheels; default: `target/wheel/out`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Test the wheels: install each into a clean environment of every CPython from 3.11 on, or run
    /// it in emulation. Wheels that are in the folder already are not built again.
    #[arg(long)]
    check: bool,
}

/// Builds the wheels, and tests them.
pub(crate) fn run(root: &Path, options: &WheelOptions) -> Result<ExitCode> {
    let work = target_folder(root)?.join("wheel");
    let out = options.out.clone().unwrap_or_else(|| work.join("out"));
    let out = std::path::absolute(&out)?;
    fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    notices::check(root)?;
    let tools = tools::install(&work)?;
    let mut wheels = Vec::new();
    for target in options.target.each() {
        let found = if options.check { find(&out, target)? } else { None };
        let wheel = match found {
            Some(wheel) => wheel,
            None => build::build(root, &work, &tools, target, &out)?,
        };
        wheels.push((target, wheel));
    }
    if !options.check {
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    for (target, wheel) in wheels {
        check::run(root, &work, &tools, target, &wheel, &mut report);
    }
    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the wheel of a target in a folder, if there is one.
fn find(out: &Path, target: Target) -> Result<Option<PathBuf>> {
    let ending = format!("_{}.whl", target.machine());
    let mut found = Vec::new();
    for entry in fs::read_dir(out).with_context(|| format!("cannot read {}", out.display()))? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("kvmem-") && name.ends_with(&ending) {
            found.push(out.join(&*name));
        }
    }
    ensure!(
        found.len() < 2,
        "{} has {} wheels for {}: remove the older ones",
        out.display(),
        found.len(),
        target.machine()
    );
    Ok(found.pop())
}

/// Runs a program, whose output is shown. Prints what it does and how long that took.
fn run_shown(what: &str, command: &mut Command) -> Result<()> {
    say!("\n── {what}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("{what}: cannot run {}", command.get_program().display()))?;
    ensure!(status.success(), "{what}: {} ended with {status}", command.get_program().display());
    say!("── {what}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
