//! The tools a full test run needs: rustfmt, clippy and a C linker.
//!
//! What can be had without asking is installed (rustup components; the linker when running as root where
//! there is `apt-get`); for anything else the error names the command that gets it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::cargo;

/// Whether a command runs and ends well; its output is dropped.
pub(crate) fn works(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> bool {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Makes sure that `cargo <subcommand>` works, through the rustup component that holds it.
pub(crate) fn component(subcommand: &str, component: &str) -> Result<()> {
    if works(cargo(), &[subcommand, "--version"]) {
        return Ok(());
    }
    if !works("rustup", &["--version"]) {
        bail!(
            "cargo {subcommand} is missing and there is no rustup to get it with: \
             install the toolchain's component `{component}`"
        );
    }
    println!("cargo {subcommand} is missing: rustup component add {component}");
    let status =
        Command::new("rustup").args(["component", "add", component]).status().context("cannot run rustup")?;
    if !status.success() || !works(cargo(), &[subcommand, "--version"]) {
        bail!("cargo {subcommand} is missing and could not be installed: rustup component add {component}");
    }
    Ok(())
}

/// Makes sure that there is a C linker.
pub(crate) fn linker() -> Result<()> {
    if works("cc", &["--version"]) {
        return Ok(());
    }
    let as_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| owner(&metadata) == 0);
    if as_root && Path::new("/usr/bin/apt-get").exists() {
        println!("the C linker cc is missing: apt-get install build-essential");
        let update = Command::new("apt-get").arg("update").status().context("cannot run apt-get")?;
        let install = Command::new("apt-get").args(["install", "-y", "build-essential"]).status()?;
        if update.success() && install.success() && works("cc", &["--version"]) {
            return Ok(());
        }
    }
    bail!("the C linker cc is missing: apt-get install build-essential")
}

#[cfg(unix)]
fn owner(metadata: &std::fs::Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::uid(metadata)
}

#[cfg(not(unix))]
fn owner(_: &std::fs::Metadata) -> u32 {
    u32::MAX
}

/// Whether fuzzing can be guided by coverage here: that takes cargo-fuzz and a nightly toolchain.
pub(crate) fn can_guide_fuzzing() -> bool {
    works("rustup", &["run", "nightly", "cargo", "fuzz", "--version"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_working_command_from_a_missing_or_failing_one() {
        assert!(works("true", &[]));
        assert!(!works("false", &[]));
        assert!(!works("kvmem-no-such-program", &[]));
    }
}
