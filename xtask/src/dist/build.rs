//! *Build*: the command and the C library of one platform, with the profile `dist`.
//!
//! Both are built one by one: together, cargo would give the C library the features that the
//! command asks of the library. Paths of the builder do not come into the files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Shipment;
use crate::run::{output, succeed};
use crate::say;
use crate::venv;
use crate::workspace::cargo;

/// The packages that are shipped.
pub(super) const PACKAGES: [&str; 2] = ["kvmem-capi", "kvmem-cli"];

/// The tools that link for another version of glibc, from the package index of pip.
const ZIG: &str = include_str!("../../requirements/zig.txt");

/// The program that tells what compiled files need.
pub(crate) const LINKS: &str = "xtask/tests/wheel/links.py";

/// The oldest glibc with all the functions that kvmem takes: `memfd_create` is the youngest.
const OLDEST_GLIBC: (u32, u32) = (2, 27);

/// The glibc of an archive for another platform, unless another one is named.
const USUAL_GLIBC: &str = "2.28";

/// Checks a version of glibc, as the argument of an option.
pub(super) fn glibc(version: &str) -> Result<String, String> {
    let numbers = version
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    let (major, minor) = OLDEST_GLIBC;
    match numbers {
        Some(numbers) if numbers >= OLDEST_GLIBC => Ok(version.to_owned()),
        Some(_) => {
            Err(format!("kvmem takes memfd_create, which is in glibc since {major}.{minor}"))
        }
        None => Err(format!("a version is two numbers, such as {major}.{minor}")),
    }
}

/// Returns the platform of this machine.
pub(crate) fn host() -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Builds both packages. Returns the folder of the files.
pub(super) fn run(shipment: &Shipment<'_>, glibc: Option<&str>) -> Result<PathBuf> {
    let triple = &shipment.triple;
    standard_library(triple)?;
    // A linker of Debian for another platform would take the glibc of this machine's release.
    let glibc = glibc.or((*triple != host()?).then_some(USUAL_GLIBC));
    let zig = glibc.map(|_| venv::make(&shipment.scratch.join("zig"), ZIG)).transpose()?;
    // Of its own for each glibc: cargo does not link again because the linker is another.
    let folder = match glibc {
        Some(glibc) => shipment.scratch.join(format!("glibc-{glibc}")),
        None => shipment.scratch.clone(),
    };
    for package in PACKAGES {
        let mut build = Command::new(cargo());
        match (&zig, glibc) {
            (Some(zig), Some(glibc)) => {
                build.env("PATH", zig.path());
                build.args(["zigbuild", "--target", &format!("{triple}.{glibc}")]);
            }
            _ => drop(build.args(["build", "--target", triple])),
        }
        build.current_dir(shipment.root).args(["--locked", "--profile", "dist"]);
        build.args(["--package", package]);
        build.env("CARGO_TARGET_DIR", &folder);
        build.env("CARGO_ENCODED_RUSTFLAGS", flags(shipment.root)?);
        succeed(&mut build)?;
    }
    Ok(folder.join(triple).join("dist"))
}

/// Returns the flags that replace the builder's paths, separated as cargo wants.
pub(crate) fn flags(root: &Path) -> Result<String> {
    let flags = [(root, "/kvmem"), (&cargo_home()?, "/cargo")]
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    Ok(flags.join("\u{1f}"))
}

/// Returns the folder in which cargo keeps the source of the dependencies.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

/// Makes sure that the compiler has the standard library of a platform.
pub(crate) fn standard_library(triple: &str) -> Result<()> {
    let folder =
        output(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if Path::new(folder.trim()).is_dir() {
        return Ok(());
    }
    say!("the standard library of {triple} is missing: rustup target add {triple}");
    succeed(Command::new("rustup").args(["target", "add", triple]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glibc_that_lacks_a_function_is_rejected() {
        assert_eq!(glibc("2.28").unwrap(), "2.28");
        assert!(glibc("2.17").unwrap_err().contains("2.27"));
        assert!(glibc("2").is_err() && glibc("two.28").is_err());
    }
}
