//! `cargo xtask package`: the crates that are meant to be published, packed and built as a registry
//! would give them to a user.
//!
//! 1. *Contents*: every tracked source file and page is in the package, tests are not, and the
//!    manifest has what a registry shows.
//! 2. *Build*: cargo packs all of them, and builds each from its package alone.
//! 3. *Documentation*: it is built with the settings of docs.rs, if there is a nightly toolchain.
//! 4. *Dependencies*: `cargo deny` compares them with `deny.toml`.
//! 5. *Public API*: `cargo semver-checks` compares it with that of the newest version tag.
//!
//! The group `package` of `cargo xtask test` takes the steps that need seconds: it packs without
//! building. The tools of the last two steps take minutes to compile, so they are installed on
//! request only, and reported as skipped where they are missing.

mod contents;
mod tools;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;

use crate::run::succeed;
use crate::say;
use crate::setup::works;
use crate::step::{Kind, Report};
use crate::workspace::{Published, cargo, published};

/// How thoroughly to check.
#[derive(Args)]
pub(crate) struct PackageOptions {
    /// Do not build the packages.
    #[arg(long)]
    no_verify: bool,
    /// Pack files that are not committed too.
    #[arg(long)]
    allow_dirty: bool,
    /// Compile cargo-deny and cargo-semver-checks first, which takes minutes.
    #[arg(long)]
    install_tools: bool,
}

/// The packages and what cargo builds of them, apart from the files of other builds.
const TARGET: &str = "target/published";

/// Runs all steps and prints the summary.
pub(crate) fn run(root: &Path, options: &PackageOptions) -> Result<ExitCode> {
    let mut report = Report::default();
    if options.install_tools {
        tools::install(&mut report);
    }
    if let Some(crates) = contents_of(root, &mut report) {
        let mut pack = pack(root, &crates);
        if options.no_verify {
            pack.arg("--no-verify");
        }
        if options.allow_dirty {
            pack.arg("--allow-dirty");
        }
        report.command("package: build", Kind::Plain, &mut pack);
    }
    documentation(root, &mut report);
    tools::run(root, &mut report);
    report.print();
    Ok(if report.total().failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the steps that take seconds.
pub(crate) fn quick(root: &Path, report: &mut Report) {
    if let Some(crates) = contents_of(root, report) {
        let fetch = || succeed(Command::new(cargo()).current_dir(root).args(FETCH));
        if report.check("package: dependencies", fetch) {
            let mut pack = pack(root, &crates);
            pack.args(["--no-verify", "--allow-dirty", "--offline", "--quiet"]);
            report.command("package: pack", Kind::Plain, &mut pack);
        }
    }
    tools::run(root, report);
}

/// Downloads what is missing of all platforms, so that packing needs no network.
const FETCH: [&str; 2] = ["fetch", "--locked"];

/// Checks what each package contains. Returns the crates, or `None` if cargo did not tell them.
fn contents_of(root: &Path, report: &mut Report) -> Option<Vec<Published>> {
    let mut crates = None;
    report.check("package: contents", || {
        let published = published(root)?;
        for each in &published {
            contents::check(root, each)?;
        }
        crates = Some(published);
        Ok(())
    });
    crates
}

/// Returns the command that packs the crates.
fn pack(root: &Path, crates: &[Published]) -> Command {
    let mut pack = Command::new(cargo());
    pack.current_dir(root).args(["package", "--locked", "--target-dir", TARGET]);
    for each in crates {
        pack.args(["--package", &each.name]);
    }
    pack
}

/// Builds the library's documentation as docs.rs does: on nightly, where items tell their features.
fn documentation(root: &Path, report: &mut Report) {
    if !works("rustup", &["run", "nightly", "cargo", "--version"]) {
        say!("(documentation as on docs.rs is skipped; rustup toolchain install nightly)");
        return;
    }
    let mut doc = Command::new("rustup");
    doc.current_dir(root).args(["run", "nightly", "cargo", "doc", "--no-deps", "--locked"]);
    doc.args(["--package", "kvmem", "--features", "metrics,tracing"]);
    doc.args(["--target-dir", "target/docsrs"]).env("RUSTDOCFLAGS", "--cfg docsrs -D warnings");
    report.command("package: documentation as on docs.rs", Kind::Plain, &mut doc);
}
