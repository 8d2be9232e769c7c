//! *Wheel*: the Python package as it is shipped, for x86_64 and aarch64.
//!
//! A wheel has the extension module, the `kvmem` command, and the C library with its headers. All
//! three are built with the profile `dist` and linked by `zig cc`, which brings stubs of every
//! version of glibc. A compiler of Debian for another architecture would link the glibc of the
//! builder's release, and the wheel would run on younger systems only.
//!
//! - [`build`] compiles the parts and makes the wheel,
//! - [`stage`] lays out the files that the wheel gets beside maturin's,
//! - `xtask/tests/wheel/links.py` rejects what needs more than libc or names a builder's folder,
//! - `xtask/tests/wheel/noxfile.py` installs a wheel into clean environments, and uses it there.

mod build;
pub(crate) mod stage;

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::dist::files;
use crate::notices;
use crate::run::output;
use crate::say;
use crate::step::{Kind, Report};
use crate::venv::{self, Environment};
use crate::workspace::target_folder;

/// The oldest glibc that a wheel runs with, from 2018. It names the tag of the wheel,
/// `manylinux_2_28`. kvmem calls `memfd_create`, which 2.27 is the first to have.
const GLIBC: (u32, u32) = (2, 28);

/// The architectures of wheels, by the kernel's names.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];
const ALL: &str = "all";

/// What builds and tests wheels.
const TOOLS: &str =
    concat!(include_str!("../requirements/wheel.txt"), include_str!("../requirements/zig.txt"));

/// The targets, the folder of the wheels, and whether they are tested.
#[derive(clap::Args)]
pub(crate) struct WheelOptions {
    /// The architecture of the wheel.
    #[arg(long, value_parser = [MACHINES[0], MACHINES[1], ALL], default_value = ARCH)]
    target: String,
    /// The folder that gets the wheels; default: `target/wheel/out`.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Test the wheels: by twine and auditwheel and, on a machine of the architecture, in a clean
    /// environment of every CPython from 3.11 on. Wheels that are in the folder already are not
    /// built again.
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
    let tools = venv::make(&work.join("tools"), TOOLS)?;
    let mut report = Report::default();
    let is_wanted = |machine: &&str| [ALL, machine].contains(&&*options.target);
    for machine in MACHINES.into_iter().filter(is_wanted) {
        let found = if options.check { find(&out, machine)? } else { None };
        let wheel = match found {
            Some(wheel) => wheel,
            None => build::build(root, &work, &tools, machine, &out)?,
        };
        if options.check {
            check(root, &work, &tools, machine, &wheel, &mut report);
        }
    }
    if options.check {
        report.print();
    }
    Ok(report.status())
}

/// Returns the wheel of an architecture in a folder, if there is one.
fn find(out: &Path, machine: &str) -> Result<Option<PathBuf>> {
    let is_wheel = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kvmem-") && name.ends_with(&format!("_{machine}.whl"))
    };
    let mut found: Vec<PathBuf> = files(out)?.into_iter().filter(is_wheel).collect();
    let (folder, count) = (out.display(), found.len());
    ensure!(count < 2, "{folder} has {count} wheels for {machine}: remove the older ones");
    Ok(found.pop())
}

/// Runs every check of a wheel: the index's own programs judge the metadata and the tag, and nox
/// installs it.
fn check(
    root: &Path,
    work: &Path,
    tools: &Environment,
    machine: &str,
    wheel: &Path,
    report: &mut Report,
) {
    let mut twine = Command::new(tools.program("twine"));
    twine.args(["check", "--strict"]).arg(wheel);
    report.command(&format!("{machine}: metadata, by twine"), Kind::Plain, &mut twine);
    report.check(&format!("{machine}: tag, by auditwheel"), || {
        let mut show = Command::new(tools.program("auditwheel"));
        let text = output(show.arg("show").arg(wheel).env("PATH", tools.path()))?;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = format!("platform tag: \"manylinux_{}_{}_{machine}\"", GLIBC.0, GLIBC.1);
        ensure!(text.contains(&wanted), "auditwheel does not say `{wanted}`: {text}");
        Ok(())
    });
    if machine != ARCH {
        say!("(not installed: the wheel is for {machine}, and this machine is {ARCH})");
        return;
    }
    let mut nox = Command::new(tools.program("nox"));
    nox.arg("--noxfile").arg(root.join("xtask/tests/wheel/noxfile.py"));
    nox.args(["--no-error-on-missing-interpreters", "--envdir"]).arg(work.join("check"));
    nox.arg("--").arg(wheel);
    report.command(&format!("{machine}: installed, by nox"), Kind::Plain, &mut nox);
}
