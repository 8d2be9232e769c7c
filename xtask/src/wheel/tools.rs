//! *Tools*: an environment with what builds and tests wheels, from the package index.
//!
//! Maturin makes the wheel, zig links it, cargo-zigbuild lets cargo call zig. Auditwheel
//! and twine judge the result as the index would, and nox installs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::target::Target;
use crate::dist::build::ZIG;
use crate::setup::works;
use crate::venv::{self, Environment};
use crate::workspace::cargo;

/// The tools. Those that decide what is inside of a wheel are pinned, so two runs agree.
const PACKAGES: [&str; 7] = [
    "maturin==1.16.*",
    ZIG[0],
    ZIG[1],
    "auditwheel==6.*",
    "twine==7.*",
    "nox>=2026.10",
    "pyelftools>=0.32",
];

/// Installs the tools into `work/tools`, unless they are there.
pub(crate) fn install(work: &Path) -> Result<Environment> {
    venv::make(&work.join("tools"), &PACKAGES)
}

/// Makes sure that the Rust compiler can compile for a target.
pub(crate) fn compiler(target: Target) -> Result<()> {
    let triple = target.triple();
    let libraries = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", &triple])
        .stderr(Stdio::null())
        .output()
        .context("cannot run rustc")?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&libraries.stdout).trim());
    if libraries.is_dir() {
        return Ok(());
    }
    ensure!(
        works("rustup", &["--version"]),
        "{} has no standard library for {triple}, and rustup, which installs it, is missing: \
         install the toolchain's target {triple}",
        Path::new(&cargo()).display()
    );
    let mut add = Command::new("rustup");
    add.args(["target", "add", &triple]);
    super::run_shown(&format!("rustup target add {triple}"), &mut add)
}
