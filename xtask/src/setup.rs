//! *Setup*: the tools of a full test run: rustfmt, clippy, a C linker, the tools that build the
//! benchmarks' contenders; and libraries that some tests use if they are there.
//!
//! Rustup components are installed. The linker and the libraries are installed when running as root
//! on a machine with `apt-get`. For anything else the error names the command that installs it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail, ensure};

use crate::say;
use crate::step;
use crate::workspace::cargo;

/// Whether a command runs and succeeds; its output is dropped.
pub(crate) fn works(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> bool {
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Makes sure that `cargo <subcommand>` works, by installing its rustup component.
pub(crate) fn component(subcommand: &str, component: &str) -> Result<()> {
    if works(cargo(), &[subcommand, "--version"]) {
        return Ok(());
    }
    if !works("rustup", &["--version"]) {
        bail!(
            "cargo {subcommand} is missing, and so is rustup, which installs it: \
             install the toolchain's component `{component}`"
        );
    }
    say!("cargo {subcommand} is missing: rustup component add {component}");
    let added = step::succeeds(Command::new("rustup").args(["component", "add", component]));
    if !added || !works(cargo(), &[subcommand, "--version"]) {
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

/// What builds the benchmarks' contenders, and the Debian packages that contain it.
const CONTENDER_TOOLS: [(&str, &str); 2] = [("c++", "build-essential"), ("cmake", "cmake")];

/// Returns whether the benchmarks' contenders can be built.
pub(crate) fn has_cmake() -> bool {
    CONTENDER_TOOLS.iter().all(|(tool, _)| works(tool, &["--version"]))
}

/// Makes sure that the benchmarks' contenders can be built: one takes CMake and a C++ compiler.
pub(crate) fn cmake() -> Result<()> {
    for (tool, from) in CONTENDER_TOOLS {
        let missing = format!("{tool} is missing, which builds the benchmarks' contenders");
        ensure!(
            package(&missing, from, || works(tool, &["--version"]))?,
            "{missing}: {}",
            by_hand(from)
        );
    }
    Ok(())
}

/// Installs fio, if possible, and returns whether it is there. The usual generator of I/O is a
/// contender of the benchmark of the disk tier, which leaves it out if it is missing.
pub(crate) fn fio() -> bool {
    let works = || works("fio", &["--version"]);
    package("fio is missing, a contender of a benchmark", "fio", works).unwrap_or_else(|error| {
        say!("{error:#}");
        false
    })
}

/// Installs GLib, if possible. Its slice allocator is a contender of a benchmark, which leaves it
/// out if it is missing.
pub(crate) fn glib() {
    let missing = "libglib-2.0.so.0 is missing";
    if !package(missing, "libglib2.0-0", || has_library("libglib-2.0.so.0")).unwrap_or(false) {
        say!("({missing}, so its allocator is not met: {})", by_hand("libglib2.0-0"));
    }
}

/// Installs Chromium, if possible. Tests open the pages of reports with it, and report a skip if it
/// is missing.
pub(crate) fn chromium() {
    let missing = "chromium is missing";
    let is_there = || {
        ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .any(|name| works(name, &["--version"]))
    };
    if !package(missing, "chromium", is_there).unwrap_or(false) {
        say!(
            "({missing}, so the pages of reports are written and not opened: {})",
            by_hand("chromium")
        );
    }
}

/// Installs the tools of the tests of the C interface, if possible. The tests report what was
/// missing.
pub(crate) fn c_tools() {
    for (tool, package_name, so) in [
        ("valgrind", "valgrind", "what it would find in the C interface is not looked for"),
        ("pkg-config", "pkg-config", "it is not asked for the C interface"),
    ] {
        let missing = format!("{tool} is missing");
        if !package(&missing, package_name, || works(tool, &["--version"])).unwrap_or(false) {
            say!("({missing}, so {so}: {})", by_hand(package_name));
        }
    }
    let missing = "GLib's headers are missing";
    let is_there = || works("pkg-config", &["--exists", "glib-2.0"]);
    if !package(missing, "libglib2.0-dev", is_there).unwrap_or(false) {
        say!("({missing}, so its slices are tried without them: {})", by_hand("libglib2.0-dev"));
    }
}

/// Installs the library for RDMA cards, if possible. Its absence is no failure: the tests of the
/// real library are then reported as skipped.
pub(crate) fn rdma_library() {
    let missing = "libibverbs.so.1 is missing";
    if !package(missing, "libibverbs1", || has_library("libibverbs.so.1")).unwrap_or(false) {
        say!("({missing}, so its tests are skipped: {})", by_hand("libibverbs1"));
    }
}

/// Whether something is there, if necessary after installing its Debian package: as root, with
/// `apt-get`.
pub(crate) fn package(missing: &str, package: &str, is_there: impl Fn() -> bool) -> Result<bool> {
    if is_there() {
        return Ok(true);
    }
    let as_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| owner(&metadata) == 0);
    if !as_root || !Path::new("/usr/bin/apt-get").exists() {
        return Ok(false);
    }
    say!("{missing}: {}", by_hand(package));
    // apt-get runs once at a time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // The package lists may exist already, so the first command may fail.
    step::succeeds(Command::new("apt-get").arg("update"));
    let install = ["install", "-y", "--no-install-recommends", package];
    step::succeeds(Command::new("apt-get").args(install));
    Ok(is_there())
}

/// Returns the command that installs a package.
pub(crate) fn by_hand(package: &str) -> String {
    format!("apt-get install {package}")
}

/// Whether the loader finds a library: in its cache, or in its default folders.
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

/// Whether fuzzing can be guided by coverage, which takes cargo-fuzz and a nightly toolchain.
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
        // Every Rust program needs this library.
        assert!(has_library("libc.so.6") || cfg!(target_env = "musl"));
    }

    #[test]
    fn what_is_there_is_not_installed() {
        assert!(package("nothing is missing", "kvmem-no-such-package", || true).unwrap());
    }
}
