//! `cargo xtask sanitize`: the tests again, under tools that see what a test cannot.
//!
//! | tool | finds | needs |
//! |---|---|---|
//! | AddressSanitizer | accesses outside of blocks or after their end; leaks | nightly |
//! | ThreadSanitizer | accesses of two threads that nothing orders | nightly, its component
//! `rust-src` |
//! | Miri | undefined behaviour of any kind, in what makes no calls of the kernel | nightly, its
//! component `miri` |
//!
//! A missing tool is reported as skipped, with the command that installs it, and is no failure.
//! Each tool has a target folder of its own, because its flags would otherwise rebuild everything
//! twice.
//!
//! ThreadSanitizer knows neither `membarrier` nor fences. No data here is ordered by them alone. In
//! an owner's lock they decide which thread enters; the data is handed over by a store with Release
//! that a load with Acquire reads, which ThreadSanitizer sees. It therefore tests the same code
//! that runs in production, and its reports are true.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::dist::build::host;
use crate::say;
use crate::setup::works;
use crate::step::{Kind, Report};

/// The tools to run.
#[derive(Args)]
pub(crate) struct SanitizeOptions {
    /// Only these (default: all).
    #[arg(value_enum, value_name = "TOOL")]
    tools: Vec<Tool>,
}

/// The tools, in the order they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Tool {
    /// AddressSanitizer, with leak detection.
    Address,
    /// ThreadSanitizer.
    Thread,
    /// Miri.
    Miri,
}

/// The tests that run under the sanitizers: crate, target, and filters. Registering is left out,
/// whose other side is foreign code.
const SANITIZED: [(&str, &[&str], &[&str]); 6] = [
    ("kvmem", &["--lib"], &[]),
    ("kvmem", &["--test", "it"], &["slab::", "arena::", "offset::", "pool::", "cache::"]),
    ("kvmem-tier", &["--lib"], &[]),
    ("kvmem-tier", &["--test", "it"], &[]),
    ("kvmem-node", &["--lib"], &[]),
    ("kvmem-node", &["--test", "it"], &["--skip", "registrars::"]),
];
/// Cases of each property test under the sanitizers, which are ten times slower.
const SANITIZED_CASES: &str = "20";
/// The library's tests that run under Miri: code over heap memory, where every system call fails,
/// and few of the layer without unsafe code.
const INTERPRETED: [&str; 8] = [
    "arena::bump::",
    "arena::pages::",
    "arena::region::",
    "cache::index::",
    "offset::allocator::raw_handle::",
    "offset::heap::bins::bin_sizes::",
    "slab::",
    "sync::",
];
/// Cases of each property test under Miri, which is hundreds of times slower.
const INTERPRETED_CASES: &str = "2";

/// Runs the tools and prints the summary; the exit status is a failure if anything was found.
pub(crate) fn run(root: &Path, options: &SanitizeOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    let is_wanted = |tool: &&Tool| options.tools.is_empty() || options.tools.contains(tool);
    for tool in [Tool::Address, Tool::Thread, Tool::Miri].iter().filter(is_wanted) {
        match (tool, missing(*tool)) {
            (_, Some(remedy)) => say!("({tool:?} is skipped; it takes: {remedy})"),
            (Tool::Miri, None) => interpret(root, &mut report),
            // It must be named, or build scripts are built with the sanitizer too.
            (_, None) => sanitize(root, *tool, &host()?, &mut report),
        }
    }
    report.finish()
}

/// Returns the command that installs what is missing; `None` if nothing is.
fn missing(tool: Tool) -> Option<&'static str> {
    let runs = |args: &[&str]| works("rustup", &[&["run", "nightly"], args].concat());
    if !runs(&["cargo", "--version"]) {
        return Some("rustup toolchain install nightly");
    }
    let source = "test -d \"$(rustc --print sysroot)/lib/rustlib/src/rust/library/std\"";
    match tool {
        Tool::Thread if !runs(&["sh", "-c", source]) => {
            Some("rustup component add --toolchain nightly rust-src")
        }
        Tool::Miri if !runs(&["sh", "-c", &format!("{source} && cargo miri --version")]) => {
            Some("rustup component add --toolchain nightly miri rust-src")
        }
        _ => None,
    }
}

/// Runs the unit and integration tests of all layers, built with a sanitizer.
fn sanitize(root: &Path, tool: Tool, host: &str, report: &mut Report) {
    let name = if tool == Tool::Thread { "thread" } else { "address" };
    let folder = format!("target/sanitize/{name}");
    // The sanitizer sees the calls of the C library alone: without them, a page that one thread has
    // unmapped and another one maps is the same to it.
    let flags = format!("-Zsanitizer={name} --cfg rustix_use_libc");
    for (package, targets, only) in SANITIZED {
        let mut tests = nightly(root, &["test", "--locked", "--package", package]);
        tests.args(["--target", host, "--target-dir", &folder]).args(targets);
        // The sanitizer must see the standard library too.
        tests.args((tool == Tool::Thread).then_some("-Zbuild-std"));
        tests.arg("--").args(only);
        tests.env("RUSTFLAGS", &flags).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        // Reports have lines.
        tests.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
        tests.env("PROPTEST_CASES", SANITIZED_CASES);
        // Requests beyond all memory must fail, as without the sanitizer; and children of a process
        // with threads may have threads.
        tests.env("ASAN_OPTIONS", "allocator_may_return_null=1");
        tests.env("TSAN_OPTIONS", "allocator_may_return_null=1:die_after_fork=0");
        let step = format!("{tool:?}: {package} {}", targets.concat());
        report.command(&step, Kind::Tests, &mut tests);
    }
}

/// Runs the library's tests under Miri. `cfg(miri)` shortens some, and leaves out those of system
/// calls.
fn interpret(root: &Path, report: &mut Report) {
    let mut tests = nightly(root, &["miri", "test", "--locked", "--package", "kvmem", "--lib"]);
    tests.args(["--target-dir", "target/sanitize/miri", "--"]).args(INTERPRETED);
    // Isolated programs have no clock and no environment.
    tests.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", INTERPRETED_CASES);
    report.command("Miri: unit", Kind::Tests, &mut tests);
}

/// Returns a command of cargo on the nightly toolchain.
pub(crate) fn nightly(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", "nightly", "cargo"]).args(args);
    // This program runs under another toolchain's cargo and rustc.
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}
