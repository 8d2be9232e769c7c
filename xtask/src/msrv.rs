//! `cargo xtask msrv`: compiles the workspace with the oldest toolchain that is promised.
//!
//! The promise is `rust-version` in the root's `Cargo.toml`. Tests and examples are not part of it.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::say;
use crate::setup::works;
use crate::workspace::rust_version;

/// Installs the toolchain if it is missing, and compiles.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let version = rust_version(root)?;
    toolchain(&version)?;
    let mut check = Command::new("rustup");
    check.current_dir(root).args(["run", &version, "cargo", "check", "--workspace", "--locked"]);
    // Of its own: another toolchain would otherwise make every other build start anew.
    check.args(["--target-dir", "target/msrv"]);
    let status = check.status().context("cannot run rustup")?;
    ensure!(
        status.success(),
        "the workspace does not compile with Rust {version}: change the code, or raise \
         rust-version by the rules of CONTRIBUTING.md"
    );
    say!("the workspace compiles with Rust {version}");
    Ok(ExitCode::SUCCESS)
}

/// Makes sure that rustup has the toolchain.
fn toolchain(version: &str) -> Result<()> {
    if works("rustup", &["run", version, "rustc", "--version"]) {
        return Ok(());
    }
    let install = ["toolchain", "install", version, "--profile", "minimal"];
    say!("Rust {version} is missing: rustup {}", install.join(" "));
    let status = Command::new("rustup").args(install).status();
    if !status.context("cannot run rustup: install it, other toolchains come from it")?.success() {
        bail!("Rust {version} is missing and could not be installed: rustup {}", install.join(" "));
    }
    Ok(())
}
