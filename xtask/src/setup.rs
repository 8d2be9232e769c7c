//! *Setup*: the tools of a full test run: rustfmt, clippy, a C linker, the tools that build the
//! benchmarks' contenders; and libraries that some tests use if they are there.
//!
//! Rustup components are installed. The linker and the libraries are installed when running as root
//! on a machine with `apt-get`. For anything else the error names the command that installs it.

use std::os::unix::fs::MetadataExt;
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

/// Installs a tool, if possible, and returns whether it is there. Says what goes without it.
pub(crate) fn tool(tool: &str, debian: &str, so: &str) -> bool {
    optional(tool, debian, so, || works(tool, &["--version"]))
}

/// Installs what some tests or benchmarks use if it is there. Says what goes without it.
fn optional(what: &str, debian: &str, so: &str, is_there: impl Fn() -> bool) -> bool {
    let missing = format!("{what} is missing");
    let found = package(&missing, debian, is_there).unwrap_or(false);
    if !found {
        say!("({missing}, so {so}: {})", by_hand(debian));
    }
    found
}

/// Installs fio, if possible, and returns whether it is there.
pub(crate) fn fio() -> bool {
    tool("fio", "fio", "the benchmark of the disk tier goes without this contender")
}

/// Installs GLib, if possible. Its slice allocator is a contender of a benchmark.
pub(crate) fn glib() {
    let library = "libglib-2.0.so.0";
    optional(library, "libglib2.0-0", "its allocator is not met", || has_library(library));
}

/// Installs Chromium, if possible, and returns whether it is there. Tests open pages with it.
pub(crate) fn chromium() -> bool {
    const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
    let so = "pages of reports and of the site are written and not opened";
    optional(NAMES[0], NAMES[0], so, || NAMES.iter().any(|name| works(name, &["--version"])))
}

/// Installs the tools of the tests of the C interface, if possible.
pub(crate) fn c_tools() {
    tool("valgrind", "valgrind", "what it would find in the C interface is not looked for");
    tool("pkg-config", "pkg-config", "it is not asked for the C interface");
    optional("glib.h", "libglib2.0-dev", "slices of GLib are tried without it", || {
        works("pkg-config", &["--exists", "glib-2.0"])
    });
}

/// Installs the library for RDMA cards, if possible.
pub(crate) fn rdma_library() {
    let library = "libibverbs.so.1";
    optional(library, "libibverbs1", "its tests are skipped", || has_library(library));
}

/// Whether something is there, if necessary after installing its Debian package: as root, with
/// `apt-get`.
pub(crate) fn package(missing: &str, package: &str, is_there: impl Fn() -> bool) -> Result<bool> {
    if is_there() {
        return Ok(true);
    }
    let as_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
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
