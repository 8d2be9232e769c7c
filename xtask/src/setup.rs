//! The tools a full test run needs: rustfmt, clippy, a C linker, and what builds the allocators
//! that the benchmarks meet; and libraries that some tests would like to meet.
//!
//! What can be had without asking is installed (rustup components; the linker and the library when
//! running as root where there is `apt-get`); for anything else the error names the command that
//! gets it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

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
    let status = Command::new("rustup")
        .args(["component", "add", component])
        .status()
        .context("cannot run rustup")?;
    if !status.success() || !works(cargo(), &[subcommand, "--version"]) {
        bail!(
            "cargo {subcommand} is missing and could not be installed: rustup component add \
             {component}"
        );
    }
    Ok(())
}

/// Makes sure that there is a C linker.
pub(crate) fn linker() -> Result<()> {
    let missing = "the C linker cc is missing";
    ensure!(
        package(missing, "build-essential", || works("cc", &["--version"]))?,
        "{missing}: {}",
        by_hand("build-essential")
    );
    Ok(())
}

/// Makes sure that the allocators which the benchmarks meet can be built: one takes CMake and a C++
/// compiler.
pub(crate) fn cmake() -> Result<()> {
    for (tool, from) in [("c++", "build-essential"), ("cmake", "cmake")] {
        let missing = format!(
            "{tool} is missing, which takes part in building the allocators that benchmarks meet"
        );
        ensure!(
            package(&missing, from, || works(tool, &["--version"]))?,
            "{missing}: {}",
            by_hand(from)
        );
    }
    Ok(())
}

/// Gets GLib, where that is possible: its slice allocator takes part in a benchmark, which does
/// without where there is none.
pub(crate) fn glib() {
    let missing = "libglib-2.0.so.0 is missing";
    if !package(missing, "libglib2.0-0", || has_library("libglib-2.0.so.0")).unwrap_or(false) {
        println!("({missing}, so its allocator is not met: {})", by_hand("libglib2.0-0"));
    }
}

/// Gets Chromium, where that is possible: tests open the pages of reports with it, and say that
/// they did not where there is none.
pub(crate) fn chromium() {
    let missing = "chromium is missing";
    let is_there = || {
        ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .any(|name| works(name, &["--version"]))
    };
    if !package(missing, "chromium", is_there).unwrap_or(false) {
        println!(
            "({missing}, so the pages of reports are written and not opened: {})",
            by_hand("chromium")
        );
    }
}

/// Gets what the tests of the C interface would like to meet, where that is possible: they say what
/// they did without.
pub(crate) fn c_tools() {
    for (tool, package_name, so) in [
        ("valgrind", "valgrind", "what it would find in the C interface is not looked for"),
        ("pkg-config", "pkg-config", "it is not asked for the C interface"),
    ] {
        let missing = format!("{tool} is missing");
        if !package(&missing, package_name, || works(tool, &["--version"])).unwrap_or(false) {
            println!("({missing}, so {so}: {})", by_hand(package_name));
        }
    }
    let missing = "GLib's headers are missing";
    let is_there = || works("pkg-config", &["--exists", "glib-2.0"]);
    if !package(missing, "libglib2.0-dev", is_there).unwrap_or(false) {
        println!(
            "({missing}, so its slices are tried without them: {})",
            by_hand("libglib2.0-dev")
        );
    }
}

/// Gets the library for RDMA cards, where that is possible. The tests that ask the real one say
/// that they are skipped where it is not there, so it is no failure.
pub(crate) fn rdma_library() {
    let missing = "libibverbs.so.1 is missing";
    if !package(missing, "libibverbs1", || has_library("libibverbs.so.1")).unwrap_or(false) {
        println!("({missing}, so its tests are skipped: {})", by_hand("libibverbs1"));
    }
}

/// Whether something is there, if need be after its Debian package was installed: as root, where
/// there is `apt-get`.
pub(crate) fn package(missing: &str, package: &str, is_there: impl Fn() -> bool) -> Result<bool> {
    if is_there() {
        return Ok(true);
    }
    let as_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| owner(&metadata) == 0);
    if !as_root || !Path::new("/usr/bin/apt-get").exists() {
        return Ok(false);
    }
    println!("{missing}: {}", by_hand(package));
    // The lists may be there already, so a failure of the first is none yet.
    Command::new("apt-get").arg("update").status().context("cannot run apt-get")?;
    let install = ["install", "-y", "--no-install-recommends", package];
    Command::new("apt-get").args(install).status().context("cannot run apt-get")?;
    Ok(is_there())
}

/// The command that gets a package.
pub(crate) fn by_hand(package: &str) -> String {
    format!("apt-get install {package}")
}

/// Whether the loader knows a library: by its cache, or in the folders that it looks into without
/// one.
pub(crate) fn has_library(name: &str) -> bool {
    let cached = ["ldconfig", "/sbin/ldconfig"].into_iter().any(|ldconfig| {
        let output =
            Command::new(ldconfig).arg("-p").stdin(Stdio::null()).stderr(Stdio::null()).output();
        output.is_ok_and(|output| lists(&String::from_utf8_lossy(&output.stdout), name))
    });
    cached
        || ["/lib", "/usr/lib", "/lib64", "/usr/lib64"]
            .iter()
            .any(|folder| Path::new(folder).join(name).exists())
}

/// Whether the output of `ldconfig -p` has a library.
fn lists(output: &str, name: &str) -> bool {
    output.lines().any(|line| line.split_whitespace().next() == Some(name))
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

    #[test]
    fn reads_what_the_loader_knows() {
        let output = "2 libs found in cache `/etc/ld.so.cache'\n\tlibibverbs.so.1 (libc6,x86-64) \
                      => /lib/libibverbs.so.1\n\tlibz.so.1 (libc6) => /lib/libz.so.1\n";
        assert!(lists(output, "libibverbs.so.1") && lists(output, "libz.so.1"));
        assert!(
            !lists(output, "libibverbs.so") && !lists(output, "libs") && !lists("", "libz.so.1")
        );
        // Whatever is on this machine, Rust's programs need this one.
        assert!(has_library("libc.so.6") || cfg!(target_env = "musl"));
    }

    #[test]
    fn what_is_there_is_not_installed() {
        assert!(package("nothing is missing", "kvmem-no-such-package", || true).unwrap());
    }
}
